"""The options and columns of `format("braidlog-kv")`.

Knows: names, defaults, what excludes what. Refuses to know: servers, how anything is read or written.
Invariant: what comes out can be run as it is; whatever is wrong was said.
"""

from collections.abc import Mapping

import msgspec
from pyspark.sql.types import StructType

from braidlog.client.drivers.link import show_address
from braidlog.client.schemes import parse_url
from braidlog.spark.columns import ColumnError, check_columns
from braidlog.spark.options import (
    REQUIRED,
    Chosen,
    FormatOptions,
    Kind,
    Option,
    OptionError,
    duration_ms,
    one_of,
    servers,
    text,
    whole,
)
from braidlog.spark.source.options import READ as TOPIC
from braidlog.spark.source.options import Query, query_of
from braidlog.wire.kafka import DIALECT as KAFKA
from braidlog.wire.mayfly import DIALECT as MAYFLY

FORMAT = "braidlog-kv"
FEED_TOPIC = "__kv"

COLUMNS = {
    "key": "BINARY",
    "op": "STRING",
    "type": "STRING",
    "value": "BINARY",
    "number": "BIGINT",
    "list": "ARRAY<BINARY>",
    "hash": "MAP<BINARY, BINARY>",
    "expires": "TIMESTAMP",
    "timestamp": "TIMESTAMP",
    "offset": "BIGINT",
    "sequence": "BIGINT",
    "stamp": "STRING",
}
SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())

_OF_THE_TOPIC = (
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxRecordsPerPartition",
    "targetPartitionBytes",
    "onDataLoss",
    "failOnDataLoss",
    "groupId",
    "fetchBytes",
)


def _store(value: str) -> str:
    """A URL of the key-value door: plain `host:port` means Mayfly's."""
    value = value.strip()
    url = value if "://" in value else f"mayfly://{value}"
    if parse_url(url).scheme != "mayfly":
        raise ValueError("the key-value door speaks mayfly")
    return url


_STORE_FORM = f"host:port of the key-value door, or a URL such as mayfly://:token@host:{MAYFLY.port}"
_store_kind = Kind(_STORE_FORM, _store, secret=True)

READ = FormatOptions(
    FORMAT,
    "read",
    (
        Option(
            "servers",
            _store_kind,
            None,
            "The node's key-value door: a snapshot waits until the feed has everything that the store had acknowledged. Without "
            "it (`feed` alone) a snapshot may lack the last moment (`kv.feed_linger_ms`).",
        ),
        Option(
            "feed",
            servers,
            None,
            f"The node's Kafka door: the store tells its changes to the topic `{FEED_TOPIC}`, and that is what is read. "
            f"Unless set, port {KAFKA.port} of the same host.",
            ("kafka.bootstrap.servers",),
        ),
        Option(
            "mode",
            one_of("snapshot", "changes"),
            None,
            "`snapshot`: every key that is there, once; batches only, and what a batch reads unless set. `changes`: every "
            "change in its order, which is what a stream reads.",
        ),
        *(option for option in TOPIC.options if option.name in _OF_THE_TOPIC),
    ),
)

WRITE = FormatOptions(
    FORMAT,
    "write",
    (
        Option("servers", _store_kind, REQUIRED, "The node's key-value door."),
        Option(
            "duplicates",
            one_of("refuse", "last", "any"),
            "refuse",
            "A key that is in a batch more than once: `refuse` fails the batch; `last` writes the row with the greatest "
            "`orderBy` of each task; `any` does not look, and leaves to chance which row stays.",
        ),
        Option("orderBy", text, None, "The column that orders the rows of a key, with duplicates = last."),
        Option("window", whole(1, 1000), "1000", "How many commands are sent before an answer is waited for."),
        Option("retryTimeout", duration_ms, "60s", "How long a node that does not answer is asked again."),
    ),
)


class Feed(msgspec.Struct, frozen=True):
    """What is read: the topic's query, and what is made of it."""

    query: Query
    mode: str
    store: str | None


def feed_of(options: Mapping[str, str], *, streaming: bool | None) -> Feed:
    """`streaming` None: it is not known yet, and only the columns are asked for."""
    chosen = READ.read(options)
    mode = chosen["mode"] or ("changes" if streaming else "snapshot")
    if streaming and mode == "snapshot":
        raise OptionError("mode", "snapshot", "a stream reads changes: it takes changes")
    if mode == "snapshot" and streaming is not None:
        _refuse_bounds(chosen)
    own = ("servers", "feed", "kafka.bootstrap.servers", "mode")
    texts = {name: value for name, value in options.items() if name.lower() not in own}
    texts |= {"servers": _feed_url(chosen), "subscribe": FEED_TOPIC, "includeHeaders": "true"}
    return Feed(query_of(texts, streaming=streaming), mode, chosen["servers"])


def _feed_url(chosen: Chosen) -> str:
    if chosen["feed"] is not None:
        return str(chosen["feed"])
    if chosen["servers"] is None:
        raise OptionError("servers", None, f"it must be set, or feed: {_STORE_FORM}")
    target = parse_url(chosen["servers"])
    if target.token is not None or target.tls:
        raise OptionError(
            "feed", None, "where the store wants a token or TLS, the Kafka door is told by a URL of its own"
        )
    return "kafka://" + ",".join(show_address((host, KAFKA.port)) for host, _ in target.nodes)


def _refuse_bounds(chosen: Chosen) -> None:
    for name in ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp", "groupId"):
        if name in chosen.given:
            raise OptionError(name, None, "a snapshot is of everything and of now; mode = changes takes it")


class Target(msgspec.Struct, frozen=True):
    """Where rows are written, and how. It travels to executors as it is."""

    url: str
    duplicates: str
    order_by: str | None
    window: int
    retry_seconds: float


_KINDS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "op": ("string",),
    "ttl_ms": ("int", "bigint"),
}


def target_of(options: Mapping[str, str], schema: StructType) -> Target:
    """The target; `OptionError` or `ValueError` if the options or the columns do not fit."""
    chosen = WRITE.read(options)
    if (chosen["duplicates"] == "last") != ("orderBy" in chosen.given):
        raise OptionError("orderBy", None, "it is set with duplicates = last, and only then")
    _check_columns(schema, chosen["orderBy"])
    return Target(
        chosen["servers"],
        chosen["duplicates"],
        chosen["orderBy"],
        chosen["window"],
        chosen["retryTimeout"] / 1000,
    )


def _check_columns(schema: StructType, order_by: str | None) -> None:
    for needed in ("key", "value", *([order_by] if order_by else [])):
        if needed not in schema.names:
            raise ColumnError(
                f"{FORMAT} writes columns key and value, and op and ttl_ms if they are there; no {needed!r}"
            )
    unknown = f"{FORMAT} does not write column '{{name}}': it takes {{known}}; select these"
    check_columns(schema, {**({order_by: ()} if order_by else {}), **_KINDS}, unknown)
