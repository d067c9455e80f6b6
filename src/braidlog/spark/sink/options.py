"""What can be set when rows are written to topics.

Knows: the options, and which of them go together. Refuses to know: rows, Spark's classes.
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
"""The longest that a broker leaves a transaction open."""
BATCH_BYTES_MIN, BATCH_BYTES_MAX = 1024, 16 * 1024 * 1024


class Settings(Options, format="braidlog", direction="write"):
    """What was chosen, checked; it travels to the tasks."""

    servers: str = o.option(o.servers, o.REQUIRED, "The node's Kafka door.", "kafka.bootstrap.servers")
    topic: str | None = o.option(o.text, None, "The topic of every row. Without it the column `topic` says it.")
    delivery: str = o.option(
        o.one_of(EXACTLY_ONCE, AT_LEAST_ONCE),
        EXACTLY_ONCE,
        "`exactly_once`: a batch that Spark writes again does not count again; readers of committed records see it whole or "
        "not at all. `at_least_once`: rows are read as they come; it works with other Kafka brokers too.",
    )
    sink_id: str | None = o.option(
        o.text,
        None,
        "Under which name the broker remembers the last batch. Unless set, a stream has its query's id (the checkpoint's), "
        "and a batch write a new one each. One name is for one query: a new checkpoint under an old name is refused.",
    )
    batch_id: int | None = o.option(
        o.whole(0),
        None,
        "Of a batch write with a `sinkId`, as in `foreachBatch`: what is not above the last one is not written again.",
    )
    compression: str = o.option(o.one_of("none", "lz4", "zstd", "gzip", "snappy"), "none", "Of the batches of records.")
    batch_bytes: int = o.option(o.size, "1m", "How large a batch of records grows, before compression; 1k to 16m.")
    stage_timeout: int = o.option(
        o.duration_ms,
        "15m",
        "What a task has written is dropped if nobody has committed it for so long; at most `15m`. A micro-batch must be "
        "done in this time, and readers of committed records wait that long for a driver that died and does not come back.",
    )
    create_topic: int | None = o.option(
        o.whole(1, PARTITIONS_PER_TOPIC_MAX),
        None,
        "A topic that is not there is made, with so many partitions. Unless set, the write fails.",
    )

    def __init__(self, options: Mapping[str, str], *, streaming: bool) -> None:
        """An `OptionError` says what is wrong."""
        meant, idle = understood(options)
        super().__init__(meant)
        for name in idle:
            o.warn_once(f"option {name} tunes Kafka's Java client and changes nothing here")
        given = self.chosen.given
        if parse_url(self.servers).scheme != "kafka":
            raise OptionError("servers", None, "rows are written through the Kafka door: kafka://host:port")
        _check(self.topic, "topic", check_topic_name)
        _check(self.sink_id, "sinkId", check_sink)
        self.exactly_once = self.delivery == EXACTLY_ONCE
        for name in ("sinkId", "batchId", "stageTimeout"):
            if name in given and not self.exactly_once:
                raise OptionError(name, None, f"it means nothing with delivery = {AT_LEAST_ONCE}")
        if streaming and "batchId" in given:
            raise OptionError("batchId", None, "a stream numbers its batches itself")
        if not streaming and ("sinkId" in given) != ("batchId" in given):
            raise OptionError("sinkId", None, "a batch write takes sinkId and batchId together, or neither")
        if not BATCH_BYTES_MIN <= self.batch_bytes <= BATCH_BYTES_MAX:
            raise OptionError("batchBytes", str(self.batch_bytes), f"{BATCH_BYTES_MIN} to {BATCH_BYTES_MAX} bytes")
        if not 1 <= self.stage_timeout <= STAGE_TIMEOUT_MS_MAX:
            raise OptionError("stageTimeout", str(self.stage_timeout), f"1 to {STAGE_TIMEOUT_MS_MAX} ms (15m)")
        self.codec = Compression[self.compression.upper()]
        if not streaming and self.sink_id is None:
            self.sink_id, self.batch_id = f"write-{uuid.uuid4()}", 0

    def __repr__(self) -> str:
        """Without the credentials that a URL may hold: a repr ends in logs."""
        return f"<{self.sink_id or 'sink of the query'} at {parse_url(self.servers)}>"


def _check(value: str | None, option: str, check: Callable[[str], object]) -> None:
    try:
        if value is not None:
            check(value)
    except BrokerError as error:
        raise OptionError(option, value, str(error)) from error
