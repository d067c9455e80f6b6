"""The options and columns of `format("braidlog-kv")`.

Validated options can be used without further checks. Does not handle: servers, reading, writing.
"""

from collections.abc import Mapping

from pyspark.sql.types import StructType

from braidlog.client.schemes import parse_url
from braidlog.model.address import show_address
from braidlog.spark import options as o
from braidlog.spark.columns import ColumnError, check_columns
from braidlog.spark.options import OptionError, Options
from braidlog.spark.source.options import Query
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
    """Parse a URL of the key-value listener: plain `host:port` means Mayfly's."""
    value = value.strip()
    url = value if "://" in value else f"mayfly://{value}"
    if parse_url(url).scheme != "mayfly":
        raise ValueError("the key-value listener needs a mayfly:// URL")
    return url


_STORE_FORM = f"host:port of the key-value listener, or a URL such as mayfly://:token@host:{MAYFLY.port}"
_store_kind = o.Kind(_STORE_FORM, _store, secret=True)


class Feed(
    Options,
    format=FORMAT,
    direction="read",
    more=tuple(row for row in Query.declared.options if row.name in _OF_THE_TOPIC),
):
    """What to read: the topic query, and the mode."""

    servers: str | None = o.option(
        _store_kind,
        None,
        "The node's key-value listener: a snapshot waits until the feed has everything that the store has acknowledged. Without "
        "it (`feed` alone) a snapshot may lack the latest changes (`kv.feed_linger_ms`).",
    )
    feed: str | None = o.option(
        o.servers,
        None,
        f"The node's Kafka listener: the store publishes its changes in the topic `{FEED_TOPIC}`, which is read. "
        f"Default: port {KAFKA.port} of the same host.",
        "kafka.bootstrap.servers",
    )
    mode: str | None = o.option(
        o.one_of("snapshot", "changes"),
        None,
        "`snapshot`: every existing key, once; batch queries only, and their default. `changes`: every "
        "change in order; the default for streams.",
    )

    def __init__(self, options: Mapping[str, str], *, streaming: bool | None) -> None:
        """`streaming` None: not known yet, because only the columns are requested."""
        super().__init__(options)
        self.mode = self.mode or ("changes" if streaming else "snapshot")
        if streaming and self.mode == "snapshot":
            raise OptionError("mode", "snapshot", "a stream reads changes: set mode = changes")
        if self.mode == "snapshot" and streaming is not None:
            self._refuse_bounds()
        own = ("servers", "feed", "kafka.bootstrap.servers", "mode")
        texts = {name: value for name, value in options.items() if name.lower() not in own}
        texts |= {"servers": self._feed_url(), "subscribe": FEED_TOPIC, "includeHeaders": "true"}
        self.query = Query(texts, streaming=streaming)

    def _feed_url(self) -> str:
        if self.feed is not None:
            return self.feed
        if self.servers is None:
            raise OptionError("servers", None, f"it must be set, or feed: {_STORE_FORM}")
        target = parse_url(self.servers)
        if target.token is not None or target.tls:
            raise OptionError("feed", None, "a store with a token or TLS needs a separate URL for the Kafka listener")
        return "kafka://" + ",".join(show_address((host, KAFKA.port)) for host, _ in target.nodes)

    def _refuse_bounds(self) -> None:
        for name in ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp", "groupId"):
            if name in self.chosen.given:
                raise OptionError(name, None, "a snapshot is of all keys and of now; it needs mode = changes")


_KINDS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "op": ("string",),
    "ttl_ms": ("int", "bigint"),
}


class Target(Options, format=FORMAT, direction="write"):
    """Where and how rows are written. It is sent to executors."""

    servers: str = o.option(_store_kind, o.REQUIRED, "The node's key-value listener.")
    duplicates: str = o.option(
        o.one_of("refuse", "last", "any"),
        "refuse",
        "A key that occurs more than once in a batch: `refuse` fails the batch; `last` writes each task's row with the greatest "
        "`orderBy`; `any` does not check, and an arbitrary row stays.",
    )
    order_by: str | None = o.option(o.text, None, "The column that orders the rows of a key, with duplicates = last.")
    window: int = o.option(o.whole(1, 1000), "1000", "The number of commands sent before waiting for answers.")
    retry_timeout: int = o.option(o.duration_ms, "60s", "How long to retry when a node does not answer.")

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raise `OptionError` or `ColumnError` if the options or the columns are invalid."""
        super().__init__(options)
        if (self.duplicates == "last") != ("orderBy" in self.chosen.given):
            raise OptionError("orderBy", None, "it must be set if, and only if, duplicates = last")
        _check_columns(schema, self.order_by)

    @property
    def retry_seconds(self) -> float:
        return self.retry_timeout / 1000


def _check_columns(schema: StructType, order_by: str | None) -> None:
    for needed in ("key", "value", *([order_by] if order_by else [])):
        if needed not in schema.names:
            raise ColumnError(
                f"{FORMAT} writes columns key and value, and optionally op and ttl_ms; {needed!r} is missing"
            )
    unknown = f"{FORMAT} cannot write column '{{name}}': it writes {{known}}; select these"
    check_columns(schema, {**({order_by: ()} if order_by else {}), **_KINDS}, unknown)
