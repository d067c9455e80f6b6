"""Rows to records with a real Spark and a real node: what a foreign reader finds, and what is refused before any is written."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.client.dialects import fresh

from braidlog.client.drivers.kafka.staging import BatchWriter, Section, Stage, coordinator_name
from braidlog.client.engine.retry import Policy
from braidlog.codec.batch.kernel import encode_records
from braidlog.codec.murmur import partition_for_key
from braidlog.model.stage_ids import stage_name
from braidlog.spark.connections import Connection, borrowed, close_idle
from braidlog.spark.sink.options import Settings
from braidlog.spark.sink.task import Attempt, Staged, Task, partitions_of
from braidlog.spark.sink.writers import TopicSink
from braidlog.testing.server import ServerProcess

TIME = datetime(2024, 5, 6, 7, 8, 9, 123000, UTC)
MS = int(TIME.timestamp() * 1000)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerProcess(tmp_path_factory.mktemp("node")) as server:
        yield f"127.0.0.1:{server.ports['kafka']}"
        close_idle()


def read(servers: str, topic: str, *, committed_only: bool = True) -> list[Any]:
    """Every message, by partition and offset, as librdkafka gives it."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": fresh("g"),
        "isolation.level": "read_committed" if committed_only else "read_uncommitted",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
        "enable.auto.commit": False,
        "check.crcs": True,
    }
    consumer = Consumer(settings)
    try:
        count = len(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in range(count)])
        found: list[Any] = []
        ends: set[int] = set()
        while len(ends) < count:
            for each in consumer.consume(1000, timeout=0.05):
                if each.error() is None:
                    found.append(each)
                else:
                    assert each.error().name() == "_PARTITION_EOF", each.error()
                    ends.add(each.partition())
        return sorted(found, key=lambda each: (each.partition(), each.offset()))
    finally:
        consumer.close()


def values(servers: str, topic: str) -> list[bytes]:
    return sorted(each.value() for each in read(servers, topic))


def write(frame: DataFrame, servers: str, mode: str = "append", **options: Any) -> None:
    writer = frame.write.format("braidlog").option("servers", servers)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.mode(mode).save()


def test_all_columns_arrive_as_they_are(spark: SparkSession, servers: str) -> None:
    first, second = fresh(), fresh()
    headers = [{"key": "h", "value": bytearray(b"1")}, {"key": "n", "value": None}]
    rows = [
        (b"k1", b"v1", headers, first, 3, TIME),
        (b"k2", b"v2", None, first, None, None),
        (None, b"v3", [], second, 0, TIME),
        (b"k4", None, None, second, None, TIME),
    ]
    schema = (
        "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int, "
        "timestamp timestamp"
    )
    frame = spark.createDataFrame(rows, schema)
    write(frame.coalesce(1), servers, createTopic=4, compression="lz4")
    found = {(each.value(), each.key()): each for topic in (first, second) for each in read(servers, topic)}
    assert set(found) == {(b"v1", b"k1"), (b"v2", b"k2"), (b"v3", None), (None, b"k4")}
    one, two, three, four = (found[value, key] for key, value, *_ in rows)
    assert one.headers() == [("h", b"1"), ("n", None)]
    assert two.headers() is three.headers() is four.headers() is None
    assert (one.topic(), one.partition(), one.timestamp()[1]) == (first, 3, MS)
    assert (two.topic(), two.partition()) == (first, partition_for_key(b"k2", 4))
    assert two.timestamp()[1] > MS, "without a time of its own it has the task's"
    assert (three.topic(), three.partition(), three.timestamp()[1]) == (second, 0, MS)
    assert (four.topic(), four.partition()) == (second, partition_for_key(b"k4", 4))
    # The option beats the column, and what was read can be written: offset and timestampType are the log's own.
    third = fresh()
    again = frame.selectExpr("value", "topic", "3L as offset", "0 as timestampType")
    write(again, servers, topic=third, createTopic=1, compression="zstd")
    assert sorted(each.value() or b"" for each in read(servers, third)) == [b"", b"v1", b"v2", b"v3"]


def test_many_rows_of_several_tasks_and_both_deliveries(spark: SparkSession, servers: str) -> None:
    frame = spark.range(0, 30_000, 1, 3).selectExpr("cast(id as string) as value", "cast(id % 100 as string) as key")
    wanted = sorted(b"%d" % number for number in range(30_000))
    for options in ({}, {"delivery": "at_least_once", "compression": "snappy"}):
        topic = fresh()
        write(frame, servers, topic=topic, createTopic=3, batchBytes="16k", **options)
        found = read(servers, topic)
        assert sorted(each.value() for each in found) == wanted
        assert all(each.partition() == partition_for_key(each.key(), 3) for each in found)
        last: dict[tuple[bytes, int], int] = {}
        for each in found:
            number = int(each.value())
            of_task = each.key(), number // 10_000
            assert last.get(of_task, -1) < number, "what a task has of a key keeps its order"
            last[of_task] = number


def test_a_named_batch_is_written_once(spark: SparkSession, servers: str) -> None:
    """As foreachBatch does it: its function runs again after a crash."""
    topic, sink = fresh(), fresh("s")
    frame = spark.createDataFrame([("a",), ("b",)], "value string")
    for _ in range(2):
        write(frame, servers, topic=topic, createTopic=1, sinkId=sink, batchId=0)
    write(frame, servers, topic=topic, sinkId=sink, batchId=1)
    assert values(servers, topic) == [b"a", b"a", b"b", b"b"]


def test_what_is_wrong_is_said_and_nothing_is_written(spark: SparkSession, servers: str) -> None:
    topic = fresh()
    fine = spark.createDataFrame([("a",)], "value string")
    for frame, mode, options, said in (
        (fine.selectExpr("1 as value"), "append", {"topic": topic}, "`value` must be binary or string"),
        (fine.selectExpr("value as other"), "append", {"topic": topic}, "needs a column `value`"),
        (fine.selectExpr("value", "1 as price"), "append", {"topic": topic}, "not part of a record"),
        (fine, "append", {}, "set the option topic"),
        (fine, "overwrite", {"topic": topic}, "a topic can only be appended to"),
        (fine, "append", {"topic": topic, "delivery": "once"}, "exactly_once or at_least_once"),
    ):
        with pytest.raises(AnalysisException, match=said):
            write(frame, servers, mode, createTopic=1, **options)
    for frame, options, said in (
        (fine, {"topic": topic}, "UNKNOWN_TOPIC_OR_PARTITION"),
        (fine.selectExpr("value", "cast(null as string) as topic"), {}, "a row has no topic"),
    ):
        with pytest.raises(PySparkException, match=said):
            write(frame, servers, **options)
    assert topic not in AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30).topics


def test_a_task_that_fails_leaves_nothing_open(spark: SparkSession, servers: str) -> None:
    """Readers of committed records would wait for it: what comes later must be read at once.

    One task: others that Spark cancels after the driver's abort may leave theirs open until it expires (ADR 29).
    """
    topic = fresh()
    rows = "cast(id as string) as value", "if(id = 19000, 77, 0) as partition"
    with pytest.raises(PySparkException, match="partition 77"):
        write(spark.range(0, 20_000, 1, 1).selectExpr(*rows), servers, topic=topic, createTopic=1, batchBytes="4k")
    write(spark.createDataFrame([("late",)], "value string"), servers, topic=topic)
    assert values(servers, topic) == [b"late"]
    assert len(read(servers, topic, committed_only=False)) > 1, "and it had written something"


def test_a_stream_that_is_stopped_and_started_and_a_new_checkpoint(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    topic, sink, folder = fresh(), fresh("s"), tmp_path / "in"
    folder.mkdir()

    def run(checkpoint: str, **options: Any) -> None:
        writer = spark.readStream.format("text").load(str(folder)).writeStream.format("braidlog")
        for key, value in {"servers": servers, "topic": topic, "createTopic": 2, **options}.items():
            writer = writer.option(key, value)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    for number in range(3):
        (folder / f"{number}.txt").write_text(f"line {number}\n")
        run("first", sinkId=sink)
    assert values(servers, topic) == [b"line 0", b"line 1", b"line 2"]
    # A new checkpoint counts from 0: under the old name its batches would be taken for replays, and lost in silence.
    with pytest.raises(PySparkException, match="another sinkId"):
        run("second", sinkId=sink)
    assert values(servers, topic) == [b"line 0", b"line 1", b"line 2"]


# -- the driver's side, without tasks --------------------------------------------------------------------------------


def staged(connection: Connection, settings: Settings, topic: str, value: bytes, task: str, batch: int = 0) -> Staged:
    assert settings.sink_id is not None
    writer = BatchWriter(
        connection.driver,
        connection.policy,
        stage=stage_name(settings.sink_id, batch, task),
        coordinator=coordinator_name(settings.sink_id),
        timeout_ms=60_000,
    )
    connection.run(writer.begin())
    connection.run(writer.add([(topic, 0)]))
    section = Section(encode_records([value], None, None, None, MS), 1, MS, MS)
    connection.run(writer.send(writer.seal((topic, 0), section)))
    connection.run(writer.flush())
    stage: Stage | None = writer.stage
    return Staged(settings.sink_id, "", stage, 1)


def test_commit_and_abort_may_come_in_any_order_and_again(servers: str) -> None:
    topic = fresh()
    settings = Settings({"servers": servers, "topic": topic, "sinkId": fresh("s")}, streaming=True)
    with borrowed(settings.servers) as connection:
        assert partitions_of(connection, topic, 1) == 1
        winner, loser = (
            staged(connection, settings, topic, value, task) for value, task in ((b"a", "0-0"), (b"z", "0-1"))
        )
        TopicSink(settings).commit([winner], 0)  # of two attempts at one task Spark hands over one
        assert values(servers, topic) == [b"a"], "and nobody waits for the other"
        TopicSink(settings).abort([winner, None], 0)
        TopicSink(settings).commit([winner], 0)
        TopicSink(settings).commit([staged(connection, settings, topic, b"replay", "0-2")], 0)
        TopicSink(settings).abort([staged(connection, settings, topic, b"failed", "0-3", batch=1), None], 1)
        TopicSink(settings).abort([None, None], 1)
        TopicSink(settings).commit([], 1)  # no task, nothing to say
        TopicSink(settings).commit(
            [staged(connection, settings, topic, b"b", "0-4", batch=1), Staged(loser.sink, "", None, 0)], 1
        )
        assert values(servers, topic) == [b"a", b"b"]


def test_open_batches_take_so_much_memory_and_no_more(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.spark.sink.task.HELD_BYTES_MAX", 1000)
    topic = fresh()
    settings = Settings({"servers": servers, "createTopic": "50"}, streaming=False)
    assert settings.sink_id is not None
    with borrowed(settings.servers) as connection:
        task = Task(settings, Attempt(settings.sink_id, "", 0, 0, 0), connection)
        columns = {
            "value": pa.array(["x" * 20] * 200),
            "key": pa.array([str(number) for number in range(200)]),
            "topic": pa.array([topic] * 200),
        }
        task.append(pa.RecordBatch.from_pydict(columns).slice(0, 2))
        assert task._writer is not None
        connection.run(task._writer.flush())
        assert len(read(servers, topic, committed_only=False)) == 0, "they wait for more"
        task.append(pa.RecordBatch.from_pydict(columns).slice(2))
        connection.run(task._writer.flush())
        assert len(read(servers, topic, committed_only=False)) == 200, "enough is enough"
        TopicSink(settings).commit([task.finish()], 0)
        assert len(read(servers, topic)) == 200


def test_an_abort_that_reaches_nobody_is_no_failure(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr("braidlog.spark.sink.writers.SHORT", Policy(retry_timeout=0.1, request_timeout=1.0))
    settings = Settings({"servers": "127.0.0.1:9", "topic": "t", "sinkId": "s"}, streaming=True)
    try:
        TopicSink(settings).abort([None], 3)
    finally:
        close_idle()
    assert "stay open until they time out" in caplog.text
