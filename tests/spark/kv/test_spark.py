"""`format("braidlog-kv")` in a real Spark, with a real store: its keys, its changes, and rows written to it."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from tests.waiting import until

from braidlog import kv
from braidlog.spark import connections
from braidlog.testing.server import ServerProcess

FORMAT = "braidlog-kv"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "node") as server:
        yield server
        connections.close_idle()


def kafka(server: ServerProcess) -> str:
    return f"127.0.0.1:{server.ports['kafka']}"


def mayfly(server: ServerProcess) -> str:
    return f"mayfly://127.0.0.1:{server.ports['mayfly']}"


def snapshot(spark: SparkSession, server: ServerProcess) -> dict[bytes, dict[str, Any]]:
    frame = spark.read.format(FORMAT).options(servers=mayfly(server), feed=kafka(server)).load()
    found = [row.asDict(recursive=True) for row in frame.collect()]
    assert len({bytes(row["key"]) for row in found}) == len(found), "a key is there once"
    return {bytes(row["key"]): row for row in found}


def test_keys_and_changes_are_what_the_store_holds(spark: SparkSession, node: ServerProcess) -> None:
    assert snapshot(spark, node) == {}, "a store that was never written to"
    before = dt.datetime.now(dt.UTC)
    with kv.connect(mayfly(node)) as store:
        store.set("text", "hello")
        store.set("text", "again", ttl_seconds=3600)
        store.set(b"\x00\xff", b"\xfe\x00")
        store.incr("count", 41)
        store.incr("count")
        store.rpush("list", "a", "b")
        store.lpop("list")
        store.hset("hash", {"f": "1", "g": "2"})
        store.hdel("hash", "f")
        store.set("gone", "x")
        store.delete("gone")
        store.run([kv.commands.set_(f"many:{number}", str(number)) for number in range(3000)])
        store.run([kv.commands.set_(f"many:{number}", "new") for number in range(0, 3000, 2)])
    found = snapshot(spark, node)
    many = {key: row["value"] for key, row in found.items() if key.startswith(b"many:")}
    assert many == {b"many:%d" % n: (b"%d" % n if n % 2 else b"new") for n in range(3000)}
    rest = {key: row for key, row in found.items() if not key.startswith(b"many:")}
    assert {key: (row["type"], row["value"], row["number"], row["list"], row["hash"]) for key, row in rest.items()} == {
        b"text": ("string", b"again", None, None, None),
        b"\x00\xff": ("string", b"\xfe\x00", None, None, None),
        b"count": ("counter", b"42", 42, None, None),
        b"list": ("list", None, None, [b"b"], None),
        b"hash": ("hash", None, None, None, {b"g": b"2"}),
    }
    ttl = rest[b"text"]["expires"] - before.replace(tzinfo=None)
    assert dt.timedelta(minutes=59) < ttl < dt.timedelta(minutes=90), "a moment in UTC, as the session has it"
    assert all(row["expires"] is None for key, row in rest.items() if key != b"text")

    changes = spark.read.format(FORMAT).options(feed=kafka(node), mode="changes").load()
    ordered = changes.filter("key not like 'many:%'").orderBy("offset").collect()
    assert [(bytes(row.key).decode("latin-1"), row.op) for row in ordered] == [
        ("text", "set"),
        ("text", "set"),
        ("\x00\xff", "set"),
        ("count", "incrby"),
        ("count", "incrby"),
        ("list", "rpush"),
        ("list", "lpop"),
        ("hash", "hset"),
        ("hash", "hdel"),
        ("gone", "set"),
        ("gone", "del"),
    ]
    assert [row.sequence for row in ordered] == list(range(1, 12))
    assert ordered[-1].value is None
    assert ordered[-1].type is None
    assert [row.stamp for row in ordered] == sorted(row.stamp for row in ordered)
    few = spark.read.format(FORMAT).schema("offset bigint, op string").options(feed=kafka(node), mode="changes").load()
    assert few.columns == ["offset", "op"]
    assert few.filter("op = 'set'").count() == 3 + 1 + 4500


def test_a_stream_of_changes_into_another_store_and_its_replay(
    spark: SparkSession, node: ServerProcess, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def copy(**options: str) -> None:
        changes = (
            spark.readStream.format(FORMAT)
            .options(servers=mayfly(node), feed=kafka(node), startingOffsets="earliest", **options)
            .load()
        )
        strings = changes.filter("type = 'string' or type is null").select("key", "value", "offset")
        query = (
            strings.repartition(2, "key")
            .writeStream.format(FORMAT)
            .options(servers=mayfly(copies), duplicates="last", orderBy="offset")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with ServerProcess(tmp_path / "copies") as copies, kv.connect(mayfly(node)) as store:
        store.run([kv.commands.set_(f"k{number % 50}", str(number)) for number in range(400)])
        store.delete("k7")
        until(lambda: store.stats().feed_sequence == store.stats().sequence)
        copy(maxOffsetsPerTrigger="150")
        with kv.connect(mayfly(copies)) as other:
            first = other.run([kv.commands.get(f"k{number}") for number in range(50)])
            assert first == [None if number == 7 else str(350 + number).encode() for number in range(50)]
            mutations = other.stats().mutations or 0
            last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
            (checkpoint / "commits" / str(last)).unlink()
            (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
            copy(maxOffsetsPerTrigger="150")
            assert (other.stats().mutations or 0) > mutations, "the batch was done again"
            assert other.run([kv.commands.get(f"k{number}") for number in range(50)]) == first


def test_rows_set_and_delete_keys(spark: SparkSession, node: ServerProcess, tmp_path: Path) -> None:
    def write(rows: list[tuple[Any, ...]], schema: str, **options: str) -> None:
        frame = spark.createDataFrame(rows, schema).repartition(2)
        frame.write.format(FORMAT).options(servers=mayfly(node), **options).mode("append").save()

    with kv.connect(mayfly(node)) as store:
        write([(f"k{number}", f"v{number}") for number in range(500)], "key string, value string", window="64")
        assert store.run([kv.commands.get(f"k{number}") for number in range(500)]) == [b"v%d" % n for n in range(500)]
        write(
            [
                (b"k0", None, None, None),
                (b"k1", b"x", "delete", None),
                (b"k2", b"y", "set", 90_500),
                (b"k3", b"z", None, None),
            ],
            "key binary, value binary, op string, ttl_ms bigint",
        )
        assert store.run([kv.commands.get(f"k{number}") for number in range(4)]) == [None, None, b"y", b"z"]
        assert 60 < (store.ttl("k2") or 0) <= 91
        with pytest.raises(PySparkException, match=r"twice|two tasks"):
            write([("same", str(number)) for number in range(10)], "key string, value string")
    frame = spark.createDataFrame([("a", "b")], "key string, value string").write.format(FORMAT).mode("overwrite")
    with pytest.raises(PySparkException, match="it never removes the other keys"):
        frame.options(servers=mayfly(node)).save()
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    wider = rows.selectExpr("'k' as key", "'v' as value", "value as number").writeStream.format(FORMAT)
    query = wider.options(servers=mayfly(node), checkpointLocation=str(tmp_path / "c")).start()
    with pytest.raises(StreamingQueryException, match="cannot write column 'number'"):
        query.awaitTermination()
