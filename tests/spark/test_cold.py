"""A topic and its table as one frame: every record once, though segments are turned, compacted and deleted meanwhile."""

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.console.waiting import until

import braidlog
from braidlog import NewRecord
from braidlog.spark import OptionError, connections, topic, topics
from braidlog.spark.cold import Cold, cold_part
from braidlog.testing.server import ServerProcess

BEGIN_MS = 1_700_000_000_000
"""Long ago: whatever has a retention is too old at once."""
SECONDS_MAX = 600
KEYS = 7
SETTINGS = {
    "braidlog.table": "raw",
    "braidlog.table.lag.ms": "-1",
    "segment.bytes": "8192",
    "retention.ms": "-1",
}


class Node:
    """Topics of two partitions; the values of a partition are its offsets."""

    def __init__(self, server: ServerProcess) -> None:
        self.servers = f"127.0.0.1:{server.ports['kafka']}"
        self.client = braidlog.connect(f"kafka://{self.servers}")
        self.sent: dict[str, int] = {}

    def create(self, name: str, **settings: str) -> None:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        self.client.admin.create_topic(name, partitions=2, settings=SETTINGS | given)
        self.sent[name] = 0

    def produce(self, name: str, count: int) -> None:
        """A batch for each 10 records: segments fill up with them."""
        producer = self.client.producer()
        begin, self.sent[name] = self.sent[name], self.sent[name] + count
        for partition in (0, 1):
            for at in range(begin, begin + count, 10):
                records = [
                    NewRecord(b"%d" % n * 20, b"k%d" % (n % KEYS), (("h", b"v"),), BEGIN_MS + n)
                    for n in range(at, at + 10)
                ]
                for delivery in producer.send_many(name, records, partition=partition):
                    delivery.result(60)

    def cold(self, name: str) -> Cold:
        return cold_part(f"kafka://{self.servers}", name)

    def turned(self, name: str, beyond: int = 0) -> Cold:
        """Wait until so many of each partition are rows. The last segment is open, and never is."""

        def look() -> Cold | None:
            found = self.cold(name)
            return found if min(found.ends.get(0, 0), found.ends.get(1, 0)) > beyond else None

        return until(look, SECONDS_MAX)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with ServerProcess(tmp_path_factory.mktemp("cold") / "data", "--set", "tables.check_seconds=0.05") as server:
        found = Node(server)
        with found.client:
            yield found
        connections.close_idle()


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.select("partition", "offset", "key", "value", "timestamp").collect())


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect())


def each_once(count: int) -> list[tuple[int, int]]:
    return [(partition, n) for partition in (0, 1) for n in range(count)]


def test_rows_and_records_are_one_frame(spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.create("orders")
    plain = topic(spark, "orders", node.servers)
    both = plain.with_table()
    assert both.frame().collect() == [], "nothing is turned yet, and nothing is there"
    node.produce("orders", 400)
    before = node.turned("orders")
    assert max(before.ends.values()) < 400
    frame = both.frame()
    assert frame.schema == plain.frame().schema
    assert rows(frame) == rows(plain.frame())
    assert places(frame) == each_once(400)
    seam = before.ends[1]
    around = [
        each.where(partition=1, offset=(seam - 5, seam + 5))
        .columns("offset", "timestampType", "headers", "topic")
        .frame()
        for each in (both, plain)
    ]
    assert sorted(map(str, around[0].collect())) == sorted(map(str, around[1].collect()))
    assert around[0].count() == 10
    assert (both.where(offset=(0, 3)).count(), both.where(offset=(399, None)).count()) == (6, 2)

    # While it is read from the state that was planned, more is turned, and what was turned then goes from the log.
    node.produce("orders", 400)
    node.turned("orders", max(before.ends.values()))
    for number, end in before.ends.items():
        node.client.admin.trim("orders", number, end)
    with monkeypatch.context() as patched:
        patched.setattr(topics, "cold_part", lambda *_: before)
        assert places(both.frame()) == each_once(800)
    assert places(both.frame()) == each_once(800), "the log has some no more, the table has"
    plan = both.columns("offset").frame()._jdf.queryExecution().toString()
    assert "ReadSchema: struct<offset:bigint>" in plan, "other columns are not read"


def test_while_the_log_is_compacted_and_deleted(
    spark: SparkSession, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are done every half a minute; rows are made of more meanwhile."""
    node.create("short", retention_ms="1000")
    node.create("keyed", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for name in ("short", "keyed"):
        node.produce(name, 400)
    early = node.turned("keyed")
    node.produce("keyed", 400)
    short, keyed = (topic(spark, name, node.servers) for name in ("short", "keyed"))

    def has_deleted() -> bool:
        node.produce("short", 10)
        return all(span.earliest for span in node.client.admin.describe_topic("short").partitions)

    until(has_deleted, SECONDS_MAX)
    node.client.admin.alter_topic(
        "short", {"retention.ms": "-1"}
    )  # what goes between a plan and the reading is missed loudly
    assert places(short.with_table().frame()) == each_once(node.sent["short"])
    until(lambda: keyed.count() < 2 * node.sent["keyed"], SECONDS_MAX)
    newest = {(p, n) for p in (0, 1) for n in range(node.sent["keyed"] - KEYS, node.sent["keyed"])}
    for cold in (early, node.cold("keyed")):
        with monkeypatch.context() as patched:
            patched.setattr(topics, "cold_part", lambda *_, cold=cold: cold)
            found = places(keyed.with_table().frame())
        assert len(found) == len(set(found)), "nothing twice"
        assert newest <= set(places(keyed.frame())) <= set(found), "all that the log has"


def test_what_is_no_table_or_cannot_be_chosen_there(spark: SparkSession, node: Node) -> None:
    node.client.admin.create_topic("plain")
    plain = topic(spark, "plain", node.servers)
    with pytest.raises(OptionError, match="the topic has no table; set its braidlog"):
        plain.with_table().frame()
    with pytest.raises(OptionError, match="it cannot be used with the topic's table"):
        plain.where(time=(BEGIN_MS, None)).with_table().frame()
    with pytest.raises(OptionError, match="the columns are key, value"):
        plain.columns("ofset").with_table().frame()
