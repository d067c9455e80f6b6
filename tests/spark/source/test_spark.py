"""The source in Spark: what is in the log is in the table, once, whatever happens in between."""

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests import waiting
from tests.spark.source.topics import Row, Runtime, random_records

import braidlog

SECONDS_MAX = 120


def load(spark: SparkSession, runtime: Runtime, schema: str | None = None, /, **options: str) -> DataFrame:
    where = {} if "path" in options else {"servers": runtime.url}
    reader = spark.read.format("braidlog").options(**where, **options)
    return (reader.schema(schema) if schema else reader).load()


def rows(frame: DataFrame) -> list[Row]:
    found = []
    for each in frame.collect():
        headers = tuple((one.key, None if one.value is None else bytes(one.value)) for one in each.headers or ())
        time = int(each.timestamp.timestamp() * 1000 + 0.5)
        key, value = (None if it is None else bytes(it) for it in (each.key, each.value))
        found.append(Row(each.partition, each.offset, key, value, headers, time))
    return sorted(found, key=lambda row: row[:2])


until = partial(waiting.until, seconds=SECONDS_MAX)


# -- batches -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["server", "folder"])
def test_a_batch_is_what_the_log_holds(spark: SparkSession, runtime: Runtime, where: str) -> None:
    options = {"path": runtime.folder} if where == "folder" else {}
    frame = load(spark, runtime, subscribe="plain,compacted,txn", includeHeaders="true", minPartitions="7", **options)
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    frame.cache()
    try:
        assert 7 <= frame.rdd.getNumPartitions() <= 12
        for topic in ("plain", "compacted", "txn"):
            assert rows(frame.where(f"topic = '{topic}'")) == runtime.rows[topic]
    finally:
        frame.unpersist()


def test_a_batch_of_some_columns_partitions_and_offsets(spark: SparkSession, runtime: Runtime) -> None:
    last = max(row.offset for row in runtime.rows["plain"] if row.partition == 1)
    frame = load(
        spark,
        runtime,
        "offset BIGINT, partition INT, value STRING",
        assign='{"plain":[1,2]}',
        startingOffsets='{"plain":{"1":5,"2":-2}}',
        endingOffsets=json.dumps({"plain": {"1": last, "2": 3}}),
        valueFormat="string",
        maxRecordsPerPartition="200",
    )
    assert frame.columns == ["offset", "partition", "value"]
    found = sorted((row.partition, row.offset) for row in frame.collect())
    assert found == [(1, at) for at in range(5, last)] + [(2, at) for at in range(3)]


def test_a_batch_by_pattern_and_time(spark: SparkSession, runtime: Runtime) -> None:
    frame = load(
        spark,
        runtime,
        subscribePattern="plai.|nothing",
        startingTimestamp="1700000002000",
        endingTimestamp="1700000009990",
    )
    expected = 0
    for partition in range(3):
        times = [row.timestamp_ms for row in runtime.rows["plain"] if row.partition == partition]
        first = next(at for at, time in enumerate(times) if time >= 1_700_000_002_000)
        end = next((at for at, time in enumerate(times) if time >= 1_700_000_009_990), len(times))
        expected += max(end - first, 0)
    assert frame.count() == expected
    assert len(frame.limit(3).collect()) == 3


def test_json_values_are_columns(spark: SparkSession, runtime: Runtime) -> None:
    topic = runtime.name("events")
    runtime.write(topic, 0, [b'{"id":1,"at":"2024-05-06T07:08:09Z","in":{"x":[1,2]}}', b"broken", None])
    frame = load(
        spark,
        runtime,
        subscribe=topic,
        valueFormat="json",
        valueSchema="id BIGINT, at TIMESTAMP, `in` STRUCT<x: ARRAY<INT>>",
    )
    assert frame.columns[-1] == "_error"
    first, second, third = frame.orderBy("offset").select("value.*", "value", "_error").collect()
    assert (first.id, first["at"].isoformat()[:19], first["in"].x, first._error) == (
        1,
        "2024-05-06T07:08:09",
        [1, 2],
        None,
    )
    assert (second.value, second._error[:17]) == (None, "not a JSON object")
    assert (third.value, third._error) == (None, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "plain", "startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "nowhere"}, "option subscribe = 'nowhere': there is no such topic"),
        ({"subscribe": "plain", "maxOffsetsPerTrigger": "1"}, "it is for streams"),
    ],
)
def test_what_is_wrong_is_said(spark: SparkSession, runtime: Runtime, options: dict[str, str], said: str) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(spark, runtime, **options).count()
    assert said in str(caught.value)


# -- streams -------------------------------------------------------------------------------------------------------------


class Table:
    """A stream into Parquet, run after run over one checkpoint."""

    def __init__(self, spark: SparkSession, runtime: Runtime, folder: Path) -> None:
        self._spark = spark
        self._runtime = runtime
        self.folder = folder

    def start(self, options: dict[str, str], *, available: bool = True) -> StreamingQuery:
        where = {} if "path" in options else {"servers": self._runtime.url}
        frame = self._spark.readStream.format("braidlog").options(**where, **options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.folder / "checkpoint"))
        writer = writer.trigger(availableNow=True) if available else writer.trigger(processingTime="0 seconds")
        return writer.start(str(self.folder / "table"))

    def run(self, **options: str) -> list[dict[str, Any]]:
        """What is available; the progress of each batch with rows."""
        query = self.start(options)
        assert query.awaitTermination(SECONDS_MAX)
        return [json.loads(each.json) for each in query.recentProgress if each.numInputRows]

    def read(self) -> DataFrame:
        return self._spark.read.parquet(str(self.folder / "table"))

    def values(self) -> list[bytes]:
        return sorted(bytes(row.value) for row in self.read().select("value").collect())


@pytest.fixture
def table(spark: SparkSession, runtime: Runtime, tmp_path: Path) -> Iterator[Table]:
    yield Table(spark, runtime, tmp_path)
    for query in spark.streams.active:
        query.stop()


def test_rows_in_the_log_are_rows_in_the_table(table: Table, runtime: Runtime) -> None:
    """Runs over one checkpoint while records and partitions are added: each record once, in the group's books too."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    topic = runtime.name("random")
    expected: list[Row] = []
    ends = {0: 0, 1: 0, 2: 0}

    def write(partitions: int) -> None:
        with braidlog.connect(runtime.url) as client, client.producer() as producer:
            for partition in range(partitions):
                records = random_records(rng, rng.randrange(1, 300))
                for at, delivery in enumerate(producer.send_many(topic, records, partition=partition)):
                    record = records[at]
                    offset = delivery.result(SECONDS_MAX).offset
                    assert record.timestamp_ms is not None
                    expected.append(
                        Row(partition, offset, record.key, record.value, tuple(record.headers), record.timestamp_ms)
                    )
                    ends[partition] = offset + 1

    with braidlog.connect(runtime.url) as client:
        client.admin.create_topic(topic, 2)
    write(2)
    options = {"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true", "groupId": f"g-{topic}"}
    progress = table.run(maxOffsetsPerTrigger="150", **options)
    assert all(each["numInputRows"] <= 150 for each in progress)
    assert sum(each["numInputRows"] for each in progress) == len(expected)
    last = progress[-1]["sources"][0]
    assert last["endOffset"] == last["latestOffset"]
    assert last["endOffset"][topic] == {"0": ends[0], "1": ends[1]}
    assert set(last["endOffset"]) == {topic, f"{topic}@id"}
    assert rows(table.read()) == sorted(expected)
    runtime.grow(topic, 3)
    write(3)
    table.run(maxBytesPerTrigger="20k", minPartitions="3", **options)
    assert rows(table.read()) == sorted(expected)
    assert table.run(**options) == []
    with braidlog.connect(runtime.url) as client:
        lag = client.admin.lag(f"g-{topic}", topic)
    assert [(each.committed, each.lag) for each in lag] == [(ends[at], 0) for at in range(3)]


def test_a_stream_that_runs_takes_what_comes(table: Table, runtime: Runtime) -> None:
    topic = runtime.name("live")
    runtime.write(topic, 0, [b"before"])
    query = table.start({"subscribe": topic, "groupId": f"g-{topic}"}, available=False)
    until(lambda: query.lastProgress is not None, "the first look")
    runtime.write(topic, 0, [b"a", b"b"])

    def committed() -> int | None:
        with braidlog.connect(runtime.url) as client:
            return client.admin.lag(f"g-{topic}", topic)[0].committed

    until(lambda: committed() == 3, "what came is committed to the group, though `commit` is a batch late")
    assert table.values() == [b"a", b"b"]  # a new stream begins with what comes
    query.stop()


def test_a_stream_over_a_folder_that_a_node_writes_to(table: Table, runtime: Runtime) -> None:
    topic = runtime.name("folder")
    runtime.write(topic, 0, [b"a", b"b", b"c"])
    options = {"path": runtime.folder, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}
    assert [each["numInputRows"] for each in table.run(**options)] == [2, 1]
    runtime.write(topic, 0, [b"d"])
    table.run(**options)
    assert table.values() == [b"a", b"b", b"c", b"d"]


def test_deletion_that_passes_a_checkpoint(table: Table, runtime: Runtime) -> None:
    """Under each policy: the exact range is named, skipped, or reported once."""
    topic, report = runtime.name("lossy"), runtime.name("losses")
    runtime.write(topic, 0, [b"%02d" % at for at in range(10)])
    options = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 2}})}
    table.run(**options)
    assert table.values() == [b"%02d" % at for at in range(2, 10)]
    runtime.write(topic, 0, [b"%02d" % at for at in range(10, 20)])
    runtime.delete_before(topic, 14)
    with pytest.raises(StreamingQueryException) as caught:
        table.run(**options)
    assert f"{topic}/0 [10, 14): the log starts later" in str(caught.value)
    # The failed batch is planned again, with the same ends: the loss is told, and once, though it is found twice.
    table.run(onDataLoss="report", lossTopic=report, **options)
    assert table.values() == [b"%02d" % at for at in (*range(2, 10), *range(14, 20))]
    for log in (table.folder / "checkpoint" / "commits", table.folder / "table" / "_spark_metadata"):
        (log / "1").unlink()  # as if killed before the batch was noted
        (log / ".1.crc").unlink(missing_ok=True)
    runtime.delete_before(topic, 16)
    table.run(onDataLoss="report", lossTopic=report, **options)
    assert table.values() == [b"%02d" % at for at in (*range(2, 10), *range(16, 20))]
    with braidlog.connect(runtime.url) as client, client.consumer() as consumer:
        consumer.assign(report, [0], start="earliest")
        told = [json.loads(record.value or b"") for record in consumer.poll(100, 5.0)]
    assert [(each["topic"], each["partition"], each["from"], each["to"]) for each in told] == [
        (topic, 0, 10, 14),
        (topic, 0, 14, 16),
    ]
    runtime.write(topic, 0, [b"%02d" % at for at in range(20, 25)])
    runtime.delete_before(topic, 22)
    table.run(failOnDataLoss="false", **options)
    assert table.values() == [b"%02d" % at for at in (*range(2, 10), *range(16, 20), *range(22, 25))]
