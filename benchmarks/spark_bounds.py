"""What bounds a Python source that gives three columns: a topic's reader with its work left out, one step after the other.

Knows: a topic's reader, and what of it is left out. All sources plan as `braidlog` does, with the same tasks and the same rows:

| source | asks the server where a topic ends | fetches | makes columns |
|---|---|---|---|
| `bound-whole` | yes | whole batches, with the values that nobody asked for | yes |
| `bound-fetched` | yes | what `braidlog` does | no: gives the same prebuilt batch again and again |
| `bound-prebuilt` | yes | no | no |

The first is what `braidlog` was before values were left out by the server. No Python source can be faster than the last: what is
left is Spark's own part, Arrow's bytes to Java and rows made of them.
A module of its own: a worker imports it, and keeps its batch.
"""

import functools
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from braidlog.client.drivers.kafka.bulk import whole
from braidlog.spark.source.chunks import read_chunks
from braidlog.spark.source.columns import ROWS_MAX, bareness, record_batches
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Range
from braidlog.spark.source.readers import TopicReader
from braidlog.spark.topic_source import TopicSource

CHOSEN = {"key": "BINARY", "offset": "BIGINT", "timestamp": "TIMESTAMP"}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in CHOSEN.items())


class Prebuilt(TopicSource):
    @classmethod
    def name(cls) -> str:
        return "bound-prebuilt"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PrebuiltReader(Query(self.options, streaming=False), schema)


class Fetched(TopicSource):
    @classmethod
    def name(cls) -> str:
        return "bound-fetched"

    def reader(self, schema: StructType) -> DataSourceReader:
        return FetchedReader(Query(self.options, streaming=False), schema)


class Whole(TopicSource):
    @classmethod
    def name(cls) -> str:
        return "bound-whole"

    def reader(self, schema: StructType) -> DataSourceReader:
        return WholeReader(Query(self.options, streaming=False), schema)


class WholeReader(TopicReader):
    def rows(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        return record_batches(self._query, self._schema, wanted, read_chunks(self._query, wanted))


class PrebuiltReader(TopicReader):
    def rows(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        return _given(wanted.end - wanted.start)


class FetchedReader(TopicReader):
    def rows(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        at = wanted.start
        for chunk in read_chunks(self._query, wanted, bareness(self._query, self._schema)):
            upto = min(whole(memoryview(chunk.data), chunk.start)[1], wanted.end)
            if upto - at >= ROWS_MAX or upto == wanted.end:
                yield from _given(upto - at)
                at = upto


SOURCES: tuple[type[DataSource], ...] = (Whole, Fetched, Prebuilt)


@functools.cache
def _batch() -> pa.RecordBatch:
    numbers = range(ROWS_MAX)
    columns = {
        "key": pa.array([b"%08d" % at for at in numbers], pa.binary()),
        "offset": pa.array(numbers, pa.int64()),
        "timestamp": pa.array(numbers, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
    }
    return pa.RecordBatch.from_pydict(columns)


def _given(rows: int) -> Iterator[pa.RecordBatch]:
    for at in range(0, rows, ROWS_MAX):
        yield _batch().slice(0, min(ROWS_MAX, rows - at))
