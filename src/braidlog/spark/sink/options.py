"""What can be set when rows are written to topics.

Knows: the options, and which of them go together. Refuses to know: rows, Spark's classes.
"""

import uuid
from collections.abc import Mapping
from typing import Final

import msgspec

from braidlog.client.schemes import parse_url
from braidlog.codec.compression import Compression
from braidlog.model.errors import BrokerError
from braidlog.model.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.model.names import check_topic_name
from braidlog.model.stages import check_sink
from braidlog.spark.options import (
    REQUIRED,
    FormatOptions,
    Option,
    OptionError,
    duration_ms,
    one_of,
    servers,
    size,
    text,
    whole,
)

EXACTLY_ONCE: Final = "exactly_once"
AT_LEAST_ONCE: Final = "at_least_once"
STAGE_TIMEOUT_MS_MAX: Final = 15 * 60_000
"""The longest that a broker leaves a transaction open."""
BATCH_BYTES_MIN, BATCH_BYTES_MAX = 1024, 16 * 1024 * 1024

WRITE: Final = FormatOptions(
    "braidlog",
    "write",
    (
        Option("servers", servers, REQUIRED, "The node's Kafka door.", ("kafka.bootstrap.servers",)),
        Option("topic", text, None, "The topic of every row. Without it the column `topic` says it."),
        Option(
            "delivery",
            one_of(EXACTLY_ONCE, AT_LEAST_ONCE),
            EXACTLY_ONCE,
            "`exactly_once`: a batch that Spark writes again does not count again; readers of committed records see it whole or "
            "not at all. `at_least_once`: rows are read as they come; it works with other Kafka brokers too.",
        ),
        Option(
            "sinkId",
            text,
            None,
            "Under which name the broker remembers the last batch. Unless set, a stream has its query's id (the checkpoint's), "
            "and a batch write a new one each. One name is for one query: a new checkpoint under an old name is refused.",
        ),
        Option(
            "batchId",
            whole(0),
            None,
            "Of a batch write with a `sinkId`, as in `foreachBatch`: what is not above the last one is not written again.",
        ),
        Option("compression", one_of("none", "lz4", "zstd", "gzip", "snappy"), "none", "Of the batches of records."),
        Option("batchBytes", size, "1m", "How large a batch of records grows, before compression; 1k to 16m."),
        Option(
            "stageTimeout",
            duration_ms,
            "15m",
            "What a task has written is dropped if nobody has committed it for so long; at most `15m`. A micro-batch must be "
            "done in this time, and readers of committed records wait that long for a driver that died and does not come back.",
        ),
        Option(
            "createTopic",
            whole(1, PARTITIONS_PER_TOPIC_MAX),
            None,
            "A topic that is not there is made, with so many partitions. Unless set, the write fails.",
        ),
    ),
)


class Settings(msgspec.Struct, frozen=True):
    """What was chosen, checked; it travels to the tasks."""

    servers: str
    topic: str | None
    exactly_once: bool
    sink: str | None
    """None: the query's id."""
    batch_id: int | None
    """None: the stream's."""
    compression: Compression
    batch_bytes: int
    stage_timeout_ms: int
    create_partitions: int | None

    def __repr__(self) -> str:
        """Without the credentials that a URL may hold: a repr ends in logs."""
        return f"<{self.sink or 'sink of the query'} at {parse_url(self.servers)}>"


def settings_of(options: Mapping[str, str], *, streaming: bool) -> Settings:
    """The settings, or an `OptionError` that says what is wrong."""
    chosen = WRITE.read(options)
    if parse_url(chosen["servers"]).scheme != "kafka":
        raise OptionError("servers", None, "rows are written through the Kafka door: kafka://host:port")
    _check(chosen["topic"], "topic", check_topic_name)
    _check(chosen["sinkId"], "sinkId", check_sink)
    exactly_once = chosen["delivery"] == EXACTLY_ONCE
    for name in ("sinkId", "batchId", "stageTimeout"):
        if name in chosen.given and not exactly_once:
            raise OptionError(name, None, f"it means nothing with delivery = {AT_LEAST_ONCE}")
    if streaming and "batchId" in chosen.given:
        raise OptionError("batchId", None, "a stream numbers its batches itself")
    if not streaming and ("sinkId" in chosen.given) != ("batchId" in chosen.given):
        raise OptionError("sinkId", None, "a batch write takes sinkId and batchId together, or neither")
    if not BATCH_BYTES_MIN <= chosen["batchBytes"] <= BATCH_BYTES_MAX:
        raise OptionError("batchBytes", str(chosen["batchBytes"]), f"{BATCH_BYTES_MIN} to {BATCH_BYTES_MAX} bytes")
    if not 1 <= chosen["stageTimeout"] <= STAGE_TIMEOUT_MS_MAX:
        raise OptionError("stageTimeout", str(chosen["stageTimeout"]), f"1 to {STAGE_TIMEOUT_MS_MAX} ms (15m)")
    return Settings(
        servers=chosen["servers"],
        topic=chosen["topic"],
        exactly_once=exactly_once,
        sink=chosen["sinkId"] or (None if streaming else f"write-{uuid.uuid4()}"),
        batch_id=chosen["batchId"] if chosen["batchId"] is not None or streaming else 0,
        compression=Compression[chosen["compression"].upper()],
        batch_bytes=chosen["batchBytes"],
        stage_timeout_ms=chosen["stageTimeout"],
        create_partitions=chosen["createTopic"],
    )


def _check(value: str | None, option: str, check: object) -> None:
    if value is None:
        return
    assert callable(check)
    try:
        check(value)
    except BrokerError as error:
        raise OptionError(option, value, str(error)) from error
