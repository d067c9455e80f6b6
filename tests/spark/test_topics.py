"""`topic`, `tables`, `lookup`, `upsert` and `infer_schema`, as they are imported and called, in one Spark with one node."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.client.gate import PartitionLocks

import braidlog
from braidlog import Log, NewRecord
from braidlog.client.kv.blocking import connect as connect_store
from braidlog.spark import OptionError, connections, infer_schema, lookup, tables, topic, upsert
from braidlog.spark.topics import Topic
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.apis import Key

BEGIN_MS = 1_700_000_000_000
ROWS = 40
PARTITIONS = 2


class Node:
    """One topic of two partitions, a record each second in each."""

    def __init__(self, server: ServerProcess) -> None:
        self.servers = f"127.0.0.1:{server.ports['kafka']}"
        self.store = f"mayfly://127.0.0.1:{server.ports['mayfly']}"
        with braidlog.connect(f"kafka://{self.servers}") as client:
            client.admin.create_topic("fl.ights", partitions=PARTITIONS)
            producer = client.producer()
            for partition in range(PARTITIONS):
                records = [
                    NewRecord(
                        json.dumps({"origin": f"A{n % 3}", "n": n, "late": n / 2 if n % 2 else None}).encode(),
                        timestamp_ms=BEGIN_MS + 1000 * n,
                    )
                    for n in range(ROWS)
                ]
                for delivery in producer.send_many("fl.ights", records, partition=partition):
                    delivery.result(60)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with ServerProcess(tmp_path_factory.mktemp("topics") / "data") as server:
        yield Node(server)
        connections.close_idle()


def test_a_part_of_a_topic(spark: SparkSession, node: Node) -> None:
    flights = topic(spark, "fl.ights", node.servers)
    assert flights.count() == PARTITIONS * ROWS
    assert flights.where(offset=7).count() == PARTITIONS
    assert flights.where(offset=(5, 9)).columns("offset").count() == 4 * PARTITIONS
    part = flights.where(partition=1, offset=(5, 1000)).where(offset=(None, 9)).columns("offset", "partition")
    assert [tuple(row) for row in part.frame().collect()] == [(at, 1) for at in range(5, 9)]
    timed = flights.where(time=("2023-11-14T22:13:30Z", BEGIN_MS + 12_000), partition=[0, 1]).columns("offset")
    assert sorted(row.offset for row in timed.frame().collect()) == [10, 10, 11, 11]
    assert flights.where(time=(BEGIN_MS * 2, None)).count() == 0, "nothing is that late"
    assert flights.where(offset=(ROWS * 2, None)).count() == 0
    with pytest.raises(OptionError, match="no partition is left"):
        flights.where(partition=0).where(partition=1).frame()
    with pytest.raises(OptionError, match="columns = 'ofset': the columns are key, value"):
        flights.columns("ofset").frame()


class Reader:
    """Notes the options that Spark's own would be given."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    def format(self, _: str) -> "Reader":
        return self

    def options(self, **options: str) -> "Reader":
        self.given = options
        return self

    def load(self) -> None:
        pass


def test_on_one_machine_the_source_is_told_how_many_tasks_run_at_a_time(spark: SparkSession, node: Node) -> None:
    reader = Reader()
    topic(spark, "fl.ights", node.servers)._load(reader)
    assert reader.given["parallelTasks"] == str(spark.sparkContext.defaultParallelism)
    topic(spark, "fl.ights", node.servers, parallelTasks="7")._load(reader)
    assert reader.given["parallelTasks"] == "7"


def test_a_part_is_told_to_the_source_and_not_filtered_behind_it(spark: SparkSession, node: Node) -> None:
    reader = Reader()
    part = topic(spark, "fl.ights", node.servers).where(partition=1, offset=(5, None), time=(None, 9)).where(offset=7)
    part._load(reader)
    assert reader.given.items() >= {
        ("assign", '{"fl.ights":[1]}'),
        ("fromOffset", "7"),
        ("toOffset", "8"),
        ("endingTimestamp", "9"),
    }


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What was told of each count without reading."""
    found: list[int | None] = []

    def noted(part: Topic, ask: Callable[[Topic], int | None] = Topic._count_by_headers) -> int | None:
        found.append(ask(part))
        return found[-1]

    monkeypatch.setattr(Topic, "_count_by_headers", noted)
    return found


class OtherBroker(PartitionLocks):
    """Before a server that does not say that it counts, as Apache Kafka's does not: another number is in its place."""

    def told(self, key: int, frame: bytes) -> bytes:
        if key != Key.API_VERSIONS:
            return frame
        counts, unknown = (struct.pack(">hhh", number, 0, 0) for number in (Key.COUNT_RECORDS, 0x7FFE))
        assert frame.count(counts) == 1
        return frame.replace(counts, unknown)


def test_a_broker_that_does_not_count_is_read(spark: SparkSession, tmp_path: Path, told: list[int | None]) -> None:
    with OtherBroker() as gate, ServerProcess(tmp_path / "data", *gate.settings) as server:
        gate.server_port = server.ports["kafka"]
        address = f"127.0.0.1:{gate.port}"
        with braidlog.connect(f"kafka://{address}") as client:
            client.admin.create_topic("t")
            for delivery in client.producer().send_many("t", [b"x"] * 5):
                delivery.result(60)
        assert topic(spark, "t", address).where(offset=(1, None)).count() == 4
        assert told == [None]
        assert Key.COUNT_RECORDS not in gate.seen
        connections.close_idle()


def test_what_cannot_be_counted_is_read(
    spark: SparkSession, node: Node, tmp_path: Path, told: list[int | None]
) -> None:
    """A batch of which compaction took records, cut by the range."""
    with Log(str(tmp_path / "d")) as log:
        compacted = log.create_topic("c", compact=True, segment_bytes=4096)
        for _ in range(2):
            compacted.append_many([NewRecord(bytes(900), b"k%d" % n) for n in (1, 1, 2, 3, 3, 3)])
        compacted.append_many([NewRecord(b"v", b"k4")])
        compacted.compact()
        left = [record.offset for record in compacted]
    part = topic(spark, "c", path=str(tmp_path / "d"))
    assert len(left) < 7
    assert (part.count(), told.pop()) == (len(left), len(left))
    assert (part.where(offset=(8, None)).count(), told.pop()) == (sum(at >= 8 for at in left), None)
    assert topic(spark, "fl.ights", node.servers).where(offset=(3, 7)).count() == 4 * PARTITIONS
    assert told == [4 * PARTITIONS]


def test_sql_finds_topics_by_name(spark: SparkSession, node: Node) -> None:
    with connect_store(node.store) as store:
        store.set(b"made", b"the topic of the store's changes")
    assert tables(spark, node.servers, "fl.*|__kv", valueFormat="string") == {"fl_ights": "fl.ights"}
    (row,) = spark.sql(
        "SELECT count(*) AS rows, max(value:n::int) AS last FROM (SELECT parse_json(value) AS value FROM fl_ights)"
    ).collect()
    assert (row["rows"], row["last"]) == (PARTITIONS * ROWS, ROWS - 1)
    spark.catalog.dropTempView("fl_ights")


def test_a_schema_is_told_from_values_and_read_with(spark: SparkSession, node: Node) -> None:
    ddl = infer_schema(topic(spark, "fl.ights", node.servers), 20)
    assert ddl == "`late` DOUBLE, `n` BIGINT, `origin` STRING"
    typed = topic(spark, "fl.ights", node.servers, valueFormat="json", valueSchema=ddl).where(offset=3, partition=0)
    (row,) = typed.frame().select("value.*").collect()
    assert row.asDict() == {"late": 1.5, "n": 3, "origin": "A0"}
    with braidlog.connect(f"kafka://{node.servers}") as client:
        client.admin.create_topic("nested")
        value = b'{"Pos": {"lat": 1.5, "Tags": [{"k v": "x"}], "none": null}, "void": null}'
        client.producer().send_and_wait("nested", value)
    ddl = infer_schema(topic(spark, "nested", node.servers))
    assert ddl == ("`Pos` STRUCT<`Tags`: ARRAY<STRUCT<`k v`: STRING>>, `lat`: DOUBLE, `none`: STRING>, `void` STRING")
    (row,) = topic(spark, "nested", node.servers, valueFormat="json", valueSchema=ddl).frame().collect()
    assert row.value.asDict(recursive=True) == {
        "Pos": {"Tags": [{"k v": "x"}], "lat": 1.5, "none": None},
        "void": None,
    }
    with pytest.raises(OptionError, match="values are not JSON objects"):
        infer_schema(spark.sql("SELECT '3' AS value"))


def test_a_stream_is_looked_up_and_upserted(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    """The dimension is asked for while the stream runs; counts per city go to keys and to a table, in mode update."""
    with connect_store(node.store) as store:
        store.set(b"airport:A0", b'{"city": "Rome", "gates": 3}')
        store.set(b"airport:A1", b'{"city": "Oslo", "gates": "many"}')
    values = "origin STRING, n BIGINT"
    flights = topic(spark, "fl.ights", node.servers, valueFormat="json", valueSchema=values).stream().select("value.*")
    named = lookup(flights, on="origin", prefix="airport:", schema="city STRING, gates INT", servers=node.store)
    counts = named.groupBy("city").agg(f.count("*").alias("flights"), f.max("gates").alias("gates"))
    table = upsert.delta(str(tmp_path / "cities"), key="city")
    keys = upsert.kv(key="city", prefix="flights:", servers=node.store)

    def both(batch: object, number: int) -> None:
        known = batch.where("city IS NOT NULL").persist()  # type: ignore[attr-defined]
        table(known, number)
        keys(known, number)
        known.unpersist()

    query = (
        counts.writeStream.outputMode("update").foreachBatch(both).option("checkpointLocation", str(tmp_path / "at"))
    )
    query.trigger(availableNow=True).start().awaitTermination()
    with connect_store(node.store) as store:
        found = {name: store.get(b"flights:" + name) for name in (b"Rome", b"Oslo")}
    assert found == {b"Rome": b'{"flights":28,"gates":3}', b"Oslo": b'{"flights":26}'}
    held = DeltaTable(str(tmp_path / "cities")).to_pyarrow_table().to_pylist()
    assert sorted((row["city"], row["flights"], row["gates"]) for row in held) == [("Oslo", 26, None), ("Rome", 28, 3)]


def test_keys_of_several_columns_are_told_apart_and_null_is_none(spark: SparkSession, node: Node) -> None:
    rows = spark.sql("SELECT * FROM VALUES ('a/b', 'c', 1), ('a', 'b/c', 2), ('a%', 'b', 3) AS t(x, y, n)")
    write = upsert.topic("pairs", key=("x", "y"), servers=node.servers, sink="pairs", createTopic="1")
    for number in (0, 0):
        write(rows, number)
    found = topic(spark, "pairs", node.servers, valueFormat="string").columns("key", "value").frame().collect()
    assert {bytes(row.key): row.value for row in found} == {
        b"a%2Fb/c": '{"n":1}',
        b"a/b%2Fc": '{"n":2}',
        b"a%25/b": '{"n":3}',
    }
    assert len(found) == 3, "the batch was written once"
    with pytest.raises(PySparkException, match="key x is null in a row"):
        upsert.kv(key="x", servers=node.store)(spark.sql("SELECT CAST(NULL AS STRING) AS x, 1 AS n"), 0)
    with pytest.raises(OptionError, match="set a name, and a new one for each checkpoint"):
        upsert.topic("pairs", key="x", servers=node.servers)(rows, 1)
