"""The options for writing rows to topics.

Does not handle: rows, Spark's classes.
"""

import uuid
from collections.abc import Callable, Mapping
from typing import Final

from braidlog.client.schemes import parse_url
from braidlog.codec.compression import Compression
from braidlog.model.errors import BrokerError
from braidlog.model.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.model.names import check_topic_name
from braidlog.model.stage_ids import check_sink
from braidlog.spark import options as o
from braidlog.spark.kafka_options import understood
from braidlog.spark.options import OptionError, Options

EXACTLY_ONCE: Final = "exactly_once"
AT_LEAST_ONCE: Final = "at_least_once"
STAGE_TIMEOUT_MS_MAX: Final = 15 * 60_000
"""The longest transaction timeout that a broker accepts."""
BATCH_BYTES_MIN, BATCH_BYTES_MAX = 1024, 16 * 1024 * 1024


class Settings(Options, format="braidlog", direction="write"):
    """The validated options; they are sent to the tasks."""

    servers: str = o.option(o.servers, o.REQUIRED, "The node's Kafka listener.", "kafka.bootstrap.servers")
    topic: str | None = o.option(o.text, None, "The topic of every row. Default: the column `topic`.")
    delivery: str = o.option(
        o.one_of(EXACTLY_ONCE, AT_LEAST_ONCE),
        EXACTLY_ONCE,
        "`exactly_once`: a repeated batch is not written again; readers with `read_committed` see a batch whole or "
        "not at all. `at_least_once`: rows are visible immediately; it works with other Kafka brokers too.",
    )
    sink_id: str | None = o.option(
        o.text,
        None,
        "The name under which the broker remembers the last batch. Default: a stream's query id (from the checkpoint), "
        "and a new name for each batch write. Use a name for one query only: a new checkpoint under an old name is refused.",
    )
    batch_id: int | None = o.option(
        o.whole(0),
        None,
        "For a batch write with a `sinkId`, as in `foreachBatch`: a number up to the last one is not written again.",
    )
    compression: str = o.option(
        o.one_of("none", "lz4", "zstd", "gzip", "snappy"), "none", "The codec of record batches."
    )
    batch_bytes: int = o.option(o.size, "1m", "The maximum size of a record batch before compression; 1k to 16m.")
    stage_timeout: int = o.option(
        o.duration_ms,
        "15m",
        "How long a task's uncommitted rows are kept; at most `15m`. A micro-batch must be "
        "done in this time. Readers with `read_committed` wait up to this long after a driver is lost.",
    )
    create_topic: int | None = o.option(
        o.whole(1, PARTITIONS_PER_TOPIC_MAX),
        None,
        "Create a missing topic with this many partitions. Default: the write fails.",
    )

    def __init__(self, options: Mapping[str, str], *, streaming: bool) -> None:
        """Validate the options; `OptionError` says what is wrong."""
        meant, idle = understood(options)
        super().__init__(meant)
        for name in idle:
            o.warn_once(f"option {name} tunes Kafka's Java client and has no effect here")
        given = self.chosen.given
        if parse_url(self.servers).scheme != "kafka":
            raise OptionError("servers", None, "rows are written through the Kafka listener: kafka://host:port")
        _check(self.topic, "topic", check_topic_name)
        _check(self.sink_id, "sinkId", check_sink)
        self.exactly_once = self.delivery == EXACTLY_ONCE
        for name in ("sinkId", "batchId", "stageTimeout"):
            if name in given and not self.exactly_once:
                raise OptionError(name, None, f"it has no effect with delivery = {AT_LEAST_ONCE}")
        if streaming and "batchId" in given:
            raise OptionError("batchId", None, "a stream numbers its batches itself")
        if not streaming and ("sinkId" in given) != ("batchId" in given):
            raise OptionError("batchId", None, "set sinkId and batchId together, or neither")
        if not BATCH_BYTES_MIN <= self.batch_bytes <= BATCH_BYTES_MAX:
            raise OptionError("batchBytes", str(self.batch_bytes), f"{BATCH_BYTES_MIN} to {BATCH_BYTES_MAX} bytes")
        if not 1 <= self.stage_timeout <= STAGE_TIMEOUT_MS_MAX:
            raise OptionError("stageTimeout", str(self.stage_timeout), f"1 to {STAGE_TIMEOUT_MS_MAX} ms (15m)")
        self.codec = Compression[self.compression.upper()]
        if not streaming and self.sink_id is None:
            self.sink_id, self.batch_id = f"write-{uuid.uuid4()}", 0

    def __repr__(self) -> str:
        """Show the URL without its credentials: a repr ends up in logs."""
        return f"<{self.sink_id or 'sink of the query'} at {parse_url(self.servers)}>"


def _check(value: str | None, option: str, check: Callable[[str], object]) -> None:
    try:
        if value is not None:
            check(value)
    except BrokerError as error:
        raise OptionError(option, value, str(error)) from error
