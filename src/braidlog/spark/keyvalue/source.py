"""`format("braidlog-kv")`: the store's keys as a table, its changes as a batch or a stream, and a sink.

The change feed is a topic like any other: the topic source handles planning, offsets, limits and losses. Does not
handle: the feed's records (`changes.py`), writing (`sink.py`). A batch has exactly the schema with which the query
was planned.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType, TimestampType

from braidlog.client.errors import RefusedError
from braidlog.client.kv.blocking import KeyValue, connect
from braidlog.model.clock import SystemClock
from braidlog.spark.columns import check_columns, simple
from braidlog.spark.keyvalue.changes import change_columns, live_rows
from braidlog.spark.keyvalue.options import COLUMNS, FEED_TOPIC, FORMAT, SCHEMA, Feed, Target
from braidlog.spark.keyvalue.sink import KeyValueSink
from braidlog.spark.options import UPSERT, OptionError
from braidlog.spark.short_errors import short_errors
from braidlog.spark.source.logs import open_log
from braidlog.spark.source.planning import Range
from braidlog.spark.source.readers import TopicReader, TopicRows, TopicStreamReader
from braidlog.spark.writers import BatchWriter, StreamWriter
from braidlog.wire.mayfly.messages import Statistics

FEED_SECONDS_MAX = 30.0
_LOOK_AGAIN_SECONDS = 0.02

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_RECORDS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("timestamp", TimestampType()),
        StructField("offset", LongType()),
        StructField("headers", ArrayType(_HEADER)),
    ]
)
"""The columns requested from the topic, regardless of the query's columns."""
_KNOWN = {name: (simple(kind),) for name, kind in COLUMNS.items()}


class KeyValueSource(DataSource):
    """Made by Spark for each `load()`, `save()` and `start()`, with the options of the query."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @short_errors
    def schema(self) -> str:
        Feed(self.options, streaming=None)
        return SCHEMA

    @short_errors
    def reader(self, schema: StructType) -> TopicReader:
        feed = Feed(self.options, streaming=False)
        return SnapshotReader(feed, schema) if feed.mode == "snapshot" else ChangesReader(feed, schema)

    @short_errors
    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        return ChangesStreamReader(Feed(self.options, streaming=True), schema)

    @short_errors
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        if overwrite:
            raise OptionError(
                "mode",
                "overwrite",
                f"{FORMAT} sets and deletes the given keys; it never removes the other keys: use append",
            )
        return BatchWriter(KeyValueSink(Target(self.options, schema)))

    @short_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, FBT001 - as above
        if overwrite:
            raise OptionError("outputMode", "complete", UPSERT.format(what="kv"))
        return StreamWriter(KeyValueSink(Target(self.options, schema)))


class _Changes(TopicRows):
    """Rows of the feed as rows of the format."""

    def __init__(self, feed: Feed, schema: StructType) -> None:
        super().__init__(feed.query, _RECORDS)
        self._store = feed.servers
        check_columns(schema, _KNOWN, f"unknown column {{name}}; {FORMAT} has {{known}}")
        self._wanted = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return (_shaped(batch, self._wanted) for batch in super().read(partition))


class ChangesReader(_Changes, TopicReader):
    """Changes as a batch."""


class ChangesStreamReader(_Changes, TopicStreamReader):
    """Changes as a stream."""


class Everything(msgspec.Struct, frozen=True):
    """The whole feed, for one task: finding the last record of a key requires all records."""

    ranges: list[Range]
    now_ms: int


class SnapshotReader(_Changes, TopicReader):
    """Every existing key, as of the time of planning: once for each `load()`."""

    def partitions(self) -> Sequence[InputPartition]:
        if self._store is not None:
            _wait_for_feed(self._store)
        if not self._has_feed():
            return []  # a store without any write has no keys
        ranges = [task.value for task in super().partitions()]
        return [InputPartition(Everything(ranges, SystemClock().now_ms()))]

    def _has_feed(self) -> bool:
        with closing(open_log(self._query.servers, self._query.path, committed_only=self._query.committed_only)) as log:
            return FEED_TOPIC in log.topics((FEED_TOPIC,))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition.value, Everything):
            records = itertools.chain.from_iterable(map(self.rows, partition.value.ranges))
            for batch in live_rows(records, partition.value.now_ms):
                yield _shaped(batch, self._wanted)


def _shaped(records: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    target = to_arrow_schema(schema, timezone="UTC")
    columns = change_columns(records)
    return pa.RecordBatch.from_arrays(
        [columns[name].cast(target.field(name).type) for name in target.names], schema=target
    )


def _wait_for_feed(url: str) -> None:
    """Return when the feed has every change that the store had acknowledged before the call."""
    deadline = SystemClock().monotonic() + FEED_SECONDS_MAX
    with connect(url) as store:
        needed = _counts(store, deadline).sequence or 0
        while (fed := _counts(store, deadline).feed_sequence or 0) < needed:
            if SystemClock().monotonic() > deadline:
                raise TimeoutError(
                    f"the topic {FEED_TOPIC} has {fed} of {needed} changes after {FEED_SECONDS_MAX:.0f} s; "
                    "is kv.feed off?"
                )
            threading.Event().wait(_LOOK_AGAIN_SECONDS)


def _counts(store: KeyValue, deadline: float) -> Statistics:
    """Return counts of all cluster nodes: a node that has just died delays them until it is fenced."""
    while True:
        try:
            return store.stats()
        except RefusedError as error:
            if not error.retriable or SystemClock().monotonic() > deadline:
                raise
        threading.Event().wait(_LOOK_AGAIN_SECONDS)
