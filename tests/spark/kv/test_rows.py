"""Rows to commands and records to rows, without Spark."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from tests.client.proxy import Proxy

from braidlog import kv
from braidlog.kv.engine.values import HashValue, ListValue, write_value
from braidlog.spark.keyvalue import changes
from braidlog.spark.keyvalue.changes import FeedError, change_columns, live_rows
from braidlog.spark.keyvalue.options import FEED_TOPIC, Feed, Target
from braidlog.spark.keyvalue.sink import KeyValueSinkError, Row, check_disjoint, rows_of, write_rows
from braidlog.spark.options import OptionError
from braidlog.testing.server import ServerProcess

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))


def records(*rows: tuple[int, bytes, bytes | None, dict[str, str]]) -> pa.RecordBatch:
    """(offset, key, value, headers) as the topic source gives them."""
    times = pa.array([offset * 1000 for offset, *_ in rows], pa.int64()).cast(pa.timestamp("us", "UTC"))
    headers = [[{"key": name, "value": text.encode()} for name, text in told.items()] for *_, told in rows]
    return pa.record_batch(
        {
            "key": pa.array([row[1] for row in rows], pa.binary()),
            "value": pa.array([row[2] for row in rows], pa.binary()),
            "timestamp": times,
            "offset": pa.array([row[0] for row in rows], pa.int64()),
            "headers": pa.array(headers, HEADERS),
        }
    )


def told(op: str, kind: str | None, sequence: int = 1, expires: int | None = None) -> dict[str, str]:
    found = {"kv.seq": str(sequence), "kv.hlc": "00" * 28, "kv.op": op}
    if kind is not None:
        found["kv.type"] = kind
    if expires is not None:
        found["kv.expires"] = str(expires)
    return found


def test_every_kind_of_value_has_its_column() -> None:
    found = pa.table(
        change_columns(
            records(
                (5, b"s", b"\xff\x00", told("set", "string", 7, 1_700_000_000_123)),
                (6, b"n", b"-12", told("incrby", "counter", 8)),
                (7, b"l", write_value(ListValue([b"a", b""])), told("rpush", "list", 9)),
                (8, b"h", write_value(HashValue([(b"f", b"1"), (b"g", b"2")])), told("hset", "hash", 10)),
                (9, b"l", b"\x00\x00\x00\x01z", told("rpush", "part", 11)),
                (10, b"s", None, told("del", None, 12)),
            )
        )
    ).to_pydict()
    assert found["op"] == ["set", "incrby", "rpush", "hset", "rpush", "del"]
    assert found["type"] == ["string", "counter", "list", "hash", "part", None]
    assert found["value"] == [b"\xff\x00", b"-12", None, None, b"\x00\x00\x00\x01z", None]
    assert found["number"] == [None, -12, None, None, None, None]
    assert found["list"] == [None, None, [b"a", b""], None, None, None]
    assert found["hash"] == [None, None, None, [(b"f", b"1"), (b"g", b"2")], None, None]
    assert found["sequence"] == [7, 8, 9, 10, 11, 12]
    assert found["offset"] == [5, 6, 7, 8, 9, 10]
    assert [None if at is None else at.timestamp() for at in found["expires"]] == [1_700_000_000.123, *[None] * 5]


def test_what_the_store_did_not_write_is_named() -> None:
    with pytest.raises(FeedError, match="offset 3"):
        change_columns(records((2, b"k", b"v", told("set", "string")), (3, b"k", b"v", {"other": "x"})))
    with pytest.raises(FeedError, match="invalid list"):
        change_columns(records((2, b"k", b"garbage", told("rpush", "list"))))


def test_a_snapshot_is_the_last_of_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "STATE_ROWS", 4)
    batches = [
        records(
            *(
                (10 * turn + number, b"k%d" % number, b"%d" % turn, told("set", "string", 10 * turn + number))
                for number in range(10)
            )
        )
        for turn in range(8)
    ]
    batches += [
        records(
            (90, b"k1", None, told("del", None)),
            (91, b"k2", b"kept", told("set", "string", expires=2_000)),
            (92, b"k3", b"late", told("set", "string", expires=1_000)),
            (93, b"k4", b"\x00", told("rpush", "part")),
            (94, b"new", b"1", told("set", "string")),
        )
    ]
    found = [row for batch in live_rows(iter(batches), now_ms=1_000) for row in batch.to_pylist()]
    assert {row["key"]: row["value"] for row in found} == {
        **{b"k%d" % number: b"7" for number in (0, 4, 5, 6, 7, 8, 9)},
        b"k2": b"kept",
        b"new": b"1",
    }
    assert [row["offset"] for row in found] == sorted(row["offset"] for row in found)
    assert list(live_rows(iter([]), 0)) == []


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_rows_say_what_is_done() -> None:
    batch = rows(
        key=pa.array(["a", "b", "c", "d"]),
        value=pa.array(["1", None, "3", "4"]),
        op=pa.array([None, None, "delete", "set"]),
        ttl_ms=pa.array([None, None, None, 1500], pa.int64()),
    )
    assert list(rows_of(batch)) == [
        Row(b"a", b"1", None),
        Row(b"b", None, None),
        Row(b"c", None, None),
        Row(b"d", b"4", 1500),
    ]
    message: Any = list(rows_of(batch))[3].command().message
    assert message.ttl_seconds == 2, "a begun second is a whole one"
    for columns, said in (
        ({"key": pa.array([None], pa.string()), "value": pa.array(["x"])}, "without a key"),
        ({"key": ["k"], "value": ["x"], "op": ["upsert"]}, "must be set, delete or null"),
        ({"key": ["k"], "value": pa.array([None], pa.string()), "op": ["set"]}, "the value is null"),
        ({"key": ["k"], "value": ["x"], "ttl_ms": [-1]}, "invalid ttl_ms -1"),
        ({"key": ["k" * 257], "value": ["x"]}, "has 257 bytes; a key must have 1 to 256"),
        ({"key": ["k"], "value": ["x" * 65_537]}, "the value has 65537 bytes"),
    ):
        with pytest.raises(KeyValueSinkError, match=said):
            list(rows_of(rows(**columns)))


def target(server: ServerProcess, **changed: str) -> Target:
    columns = StructType().add("key", "string").add("value", "string")
    if "orderBy" in changed:
        columns.add(changed["orderBy"], "long")
    return Target({"servers": f"127.0.0.1:{server.ports['mayfly']}", "window": "7", **changed}, columns)


def test_a_key_that_comes_twice(braid_server_shared: ServerProcess) -> None:
    twice = rows(key=["twice:1", "twice:2", "twice:1"], value=["old", "x", "new"], at=[5, 1, 4])
    with pytest.raises(KeyValueSinkError, match="'twice:1' occurs twice in one batch"):
        write_rows([twice.drop_columns(["at"])], target(braid_server_shared))
    last = target(braid_server_shared, duplicates="last", orderBy="at")
    one = write_rows([twice], last)
    with kv.connect(last.servers) as store:
        assert store.get("twice:1") == b"old", "the greatest of orderBy, not the last that came"
    other = write_rows([rows(key=["twice:9"], value=["x"], at=[1])], last)
    check_disjoint([one, None, other])
    with pytest.raises(KeyValueSinkError, match="two tasks of one batch wrote the same key"):
        check_disjoint([one, other, write_rows([rows(key=["twice:2"], value=["x"], at=[1])], last)])


def test_a_node_that_is_killed_between_windows_and_comes_back(braid_server: ServerProcess) -> None:
    """Whatever was answered is there, and whatever was not is sent again."""
    aim = target(braid_server, window="50")

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(6):
            keys = [f"k{number}:{row}" for row in range(120)]
            yield rows(key=keys, value=keys)
            if number in (1, 3):
                braid_server.kill()
                restarted = threading.Thread(target=braid_server.restart)
                restarted.start()
                threads.append(restarted)

    threads: list[threading.Thread] = []
    written = write_rows(batches(), aim)
    for thread in threads:
        thread.join(60)
    assert len(written.marks) == 8 * 720
    with kv.connect(aim.servers) as store:
        found = store.run([kv.commands.get(f"k{number}:{row}") for number in range(6) for row in range(120)])
    assert found == [f"k{number}:{row}".encode() for number in range(6) for row in range(120)]


@pytest.mark.parametrize("way", ["cut_asked_at", "cut_answered_at"])
def test_answers_that_are_lost_are_asked_for_again(way: str, braid_server_shared: ServerProcess) -> None:
    """The connection breaks in the middle of a window: nobody knows which of its rows were written; they are sent again."""
    keys = [f"{way}:{number}" for number in range(600)]

    async def write() -> int:
        async with Proxy(braid_server_shared.ports["mayfly"]) as proxy:
            setattr(proxy, way, 2000)
            aim = target(braid_server_shared, servers=f"127.0.0.1:{proxy.port}", window="50")
            await asyncio.to_thread(write_rows, [rows(key=keys, value=keys)], aim)
            return proxy.cuts

    assert asyncio.run(write()) == 1
    with kv.connect(target(braid_server_shared).servers) as store:
        assert store.run([kv.commands.get(key) for key in keys]) == [key.encode() for key in keys]


def test_what_the_store_refuses_names_the_key(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "kv.memory_bytes_max=1048576") as server:
        many = [f"fill:{number}" for number in range(100)]
        with pytest.raises(KeyValueSinkError, match=r"key b'fill:\d+': .*\(OUT_OF_MEMORY\)"):
            write_rows([rows(key=many, value=["x" * 60_000] * 100)], target(server, retryTimeout="100ms"))


def test_options() -> None:
    assert Feed({"feed": "h:9092"}, streaming=False).mode == "snapshot"
    stream = Feed({"servers": "h:9092", "startingOffsets": "earliest"}, streaming=True)
    assert (stream.mode, stream.query.selection.topics, stream.query.include_headers) == (
        "changes",
        (FEED_TOPIC,),
        True,
    )
    assert stream.query.servers == "kafka://h:9092", "the Kafka door of the same node"
    assert Feed({"servers": "h:1", "kafka.bootstrap.servers": "b:2"}, streaming=False).query.servers == "kafka://b:2"
    columns = StructType().add("key", "string").add("value", "binary")
    assert Target({"servers": "h:7275"}, columns).servers == "mayfly://h:7275"
    for call, said in (
        (lambda: Feed({}, streaming=False), "servers: it must be set"),
        (lambda: Feed({"servers": "h:1", "mode": "snapshot"}, streaming=True), "a stream reads changes"),
        (
            lambda: Feed({"servers": "h:1", "startingOffsets": "earliest"}, streaming=False),
            "it needs mode = changes",
        ),
        (lambda: Feed({"servers": "mayfly://:secret@h:1"}, streaming=False), "feed: a store with a token"),
        (lambda: Feed({"servers": "kafka://h:1"}, streaming=False), "needs a mayfly:// URL"),
        (lambda: Feed({"servers": "h:1", "subscribe": "x"}, streaming=False), "no such option"),
        (lambda: Target({"servers": "kafka://h:1"}, columns), "needs a mayfly:// URL"),
        (lambda: Target({"servers": "h:1", "duplicates": "last"}, columns), "only if, duplicates = last"),
    ):
        with pytest.raises(OptionError, match=said):
            call()
    for schema, said in (
        (StructType().add("key", "string"), "'value' is missing"),
        (StructType([*columns.fields]).add("extra", "integer"), "cannot write column 'extra'"),
        (StructType().add("key", "integer").add("value", "string"), "`key` must be binary or string, not int"),
    ):
        with pytest.raises(ValueError, match=said):
            Target({"servers": "h:1"}, schema)
