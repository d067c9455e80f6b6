"""What an executor does, without Spark: chunks, windows, columns, against a real node and its folder."""

import contextlib
import gc
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType, _parse_datatype_json_string
from tests.spark.source.topics import Row, Runtime

import braidlog
from braidlog import Log, NewRecord
from braidlog.client.drivers.kafka import bulk
from braidlog.client.drivers.kafka.bulk import EARLIEST, LATEST, Bare
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import ConnectError
from braidlog.model.errors import StorageFault
from braidlog.spark.columns import ColumnError
from braidlog.spark.connections import Connection, borrowed, close_idle
from braidlog.spark.options import OptionError
from braidlog.spark.source.bounds import ends, find_places, starts
from braidlog.spark.source.chunks import BARE_BYTES_MAX, WINDOW, Ahead, next_bytes, read_chunks
from braidlog.spark.source.columns import bareness, check_schema, record_batches
from braidlog.spark.source.logs import open_log
from braidlog.spark.source.losses import DataLossError, reports
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Range
from braidlog.spark.source.readers import TopicReader
from braidlog.testing.server import ServerProcess

TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "integer",
    "headers": {
        "type": "array",
        "containsNull": True,
        "elementType": {
            "type": "struct",
            "fields": [
                {"name": "key", "type": "string", "nullable": True, "metadata": {}},
                {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
            ],
        },
    },
    "_error": "string",
}
ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def schema(*names: str, **types: Any) -> StructType:
    """Spark's type of these columns, made without Spark."""
    kinds = {**TYPES, **types}
    fields = [{"name": name, "type": kinds[name], "nullable": True, "metadata": {}} for name in names]
    found = _parse_datatype_json_string(json.dumps({"type": "struct", "fields": fields}))
    assert isinstance(found, StructType)
    return found


def query(runtime: Runtime, topic: str, *, folder: bool = False, **options: str) -> Query:
    where = {"path": runtime.folder} if folder else {"servers": runtime.url}
    return Query({**where, "subscribe": topic, **options}, streaming=False)


def whole(asked: Query) -> list[Range]:
    log = open_log(asked.servers, asked.path, committed_only=asked.committed_only)
    try:
        places = find_places(log, asked.selection)
        begin, end = (
            starts(log, asked.start, places, asked.starting_offsets_by_timestamp_strategy),
            ends(log, asked.end, places),
        )
    finally:
        log.close()
    return [Range(*place, begin[place], end[place]) for place in places]


def batches(asked: Query, wanted: Range, *names: str) -> list[pa.RecordBatch]:
    return list(record_batches(asked, schema(*(names or ALL)), wanted, read_chunks(asked, wanted)))


def rows(asked: Query) -> list[Row]:
    found = []
    for wanted in whole(asked):
        for batch in batches(asked, wanted):
            for each in batch.to_pylist():
                headers = tuple((one["key"], one["value"]) for one in each["headers"] or ())
                time = int(each["timestamp"].timestamp() * 1000 + 0.5)
                assert each["topic"] == wanted.topic
                found.append(Row(each["partition"], each["offset"], each["key"], each["value"], headers, time))
    return sorted(found, key=lambda row: row[:2])


@pytest.mark.parametrize("folder", [False, True], ids=["server", "folder"])
@pytest.mark.parametrize("topic", ["plain", "compacted", "txn"])
@pytest.mark.parametrize("fetch_bytes", ["1", "4m"])
def test_rows_are_the_logs(runtime: Runtime, topic: str, folder: bool, fetch_bytes: str) -> None:
    assert rows(query(runtime, topic, folder=folder, fetchBytes=fetch_bytes)) == runtime.rows[topic]


@pytest.mark.parametrize("folder", [False, True], ids=["server", "folder"])
def test_who_wants_it_sees_what_is_not_committed(runtime: Runtime, folder: bool) -> None:
    found = rows(query(runtime, "txn", folder=folder, isolation="read_uncommitted"))
    assert [row.value for row in found] == [
        f"{fate} {at}".encode() for fate in ("commit", "abort", "commit", "open") for at in range(5)
    ]


@pytest.mark.parametrize("folder", [False, True], ids=["server", "folder"])
def test_any_part_of_a_range_is_that_part(runtime: Runtime, folder: bool) -> None:
    asked = query(runtime, "plain", folder=folder)
    for wanted in whole(asked):
        expected = [row.offset for row in runtime.rows["plain"] if row.partition == wanted.partition]
        for start, end in ((1, 2), (0, 0), (5, wanted.end - 3), (wanted.end - 1, wanted.end)):
            part = Range(wanted.topic, wanted.partition, start, end)
            got = [at for batch in batches(asked, part, "offset") for at in batch.column(0).to_pylist()]
            assert got == [at for at in expected if start <= at < end]


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("topic", ["plain", "compacted", "txn"])
def test_what_is_counted_is_what_is_read(runtime: Runtime, topic: str, isolation: str, folder: bool) -> None:
    asked = query(runtime, topic, folder=folder, isolation=isolation)
    found = [row.offset for row in rows(asked) if row.partition == 0]
    log = open_log(asked.servers, asked.path, committed_only=asked.committed_only)
    try:
        end = log.latest([(topic, 0)])[topic, 0]
        for start, upto in ((0, end), (end // 3, end), (end // 3, end // 2), (end, end)):
            told = log.count([Range(topic, 0, start, upto)] if start < upto else [])
            assert told == sum(start <= offset < upto for offset in found)
        assert log.count([Range("nowhere", 0, 0, 1)]) is None, "whoever reads it is told"
    finally:
        log.close()


def test_the_logs_own_times_are_told(runtime: Runtime) -> None:
    asked = query(runtime, "stamped")
    (wanted,) = whole(asked)
    (batch,) = batches(asked, wanted)
    assert batch.column("timestampType").to_pylist() == [1, 1]
    assert batch.column("timestamp")[0].as_py().year > 2020
    (plain, *_) = whole(query(runtime, "plain"))
    assert set(batches(asked, plain)[0].column("timestampType").to_pylist()) == {0}


def test_columns_come_in_the_order_that_was_asked_for(runtime: Runtime) -> None:
    asked = query(runtime, "plain")
    wanted = whole(asked)[0]
    for names in (("value", "offset"), ("partition",), ("topic", "timestampType"), tuple(reversed(ALL))):
        found = batches(asked, wanted, *names)
        assert found[0].schema.names == list(names)
        assert sum(batch.num_rows for batch in found) == wanted.end - wanted.start


@pytest.mark.parametrize("topic", ["plain", "compacted", "txn"])
def test_columns_without_values_are_those_of_the_log(runtime: Runtime, topic: str) -> None:
    asked = query(runtime, topic)
    for names in (("key", "offset"), ("timestamp", "partition")):
        reader = TopicReader(asked, schema(*names))
        found = [row for wanted in whole(asked) for batch in reader.rows(wanted) for row in batch.to_pylist()]
        wanted_rows = [
            {"key": row.key, "offset": row.offset, "partition": row.partition} for row in runtime.rows[topic]
        ]
        for row in found:
            row.pop("timestamp", None)
        assert found == [{name: row[name] for name in names if name in row} for row in wanted_rows]


def test_values_that_nobody_asked_for_are_not_sent(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it seen by anything else: an aborted transaction between two is left out as ever."""
    topic = runtime.name("wide")
    records = [NewRecord(b"v" * 500, b"k%d" % at, (("h", b"x"),), 1_700_000_000_000 + at) for at in range(50)]
    with braidlog.connect(runtime.url) as client:
        client.admin.create_topic(topic)
        producer = client.producer(transactional_id=topic)
        for fate in ("commit", "abort", "commit"):
            with contextlib.suppress(_Abort), producer.transaction():
                producer.send_many(topic, records)
                producer.flush()
                if fate == "abort":
                    raise _Abort
    asked = query(runtime, topic)
    (wanted,) = whole(asked)
    came: dict[Bare, int] = {}
    for bare, names in ((Bare.NOTHING, ALL), (Bare.VALUES, ("key", "offset")), (Bare.KEYS_AND_VALUES, ("offset",))):
        assert bareness(asked, schema(*names)) is bare
        chunks = list(read_chunks(asked, wanted, bare))
        came[bare] = sum(len(chunk.data) for chunk in chunks)
        (batch,) = record_batches(asked, schema(*names), wanted, chunks)
        assert batch.column("offset").to_pylist() == [*range(50), *range(102, 152)]
        if "key" in names:
            assert batch.column("key").to_pylist() == [record.key for record in records] * 2
    assert came[Bare.KEYS_AND_VALUES] < came[Bare.VALUES] < came[Bare.NOTHING] // 20
    monkeypatch.setattr(bulk, "byteorder", "big")  # whose numbers are not those of the columns that are sent
    assert sum(len(chunk.data) for chunk in read_chunks(asked, wanted, Bare.VALUES)) == came[Bare.NOTHING]
    assert bareness(query(runtime, topic, valueFormat="string"), schema("offset", "_error")) is Bare.NOTHING


class _Abort(Exception):  # noqa: N818 - a transaction's own end
    pass


def test_tasks_that_take_no_values_are_larger_unless_it_is_said(runtime: Runtime) -> None:
    for asked, names, wanted in (
        (query(runtime, "plain"), ALL, 64 << 20),
        (query(runtime, "plain"), ("offset",), 256 << 20),
        (query(runtime, "plain", targetPartitionBytes="1m"), ("offset",), 1 << 20),
    ):
        assert TopicReader(asked, schema(*names)).cuts.target_bytes == wanted
    told = query(runtime, "plain", parallelTasks="2")
    assert (found := TopicReader(told, schema("offset")).cuts).at_a_time == 2
    assert found.bytes_max == 1 << 30
    assert TopicReader(told, schema(*ALL)).cuts.at_a_time is None, (
        "with values, tasks are small whatever runs at a time"
    )


def test_more_of_the_log_is_asked_for_while_little_of_it_comes() -> None:
    """A whole answer brings it back to what the query set: memory follows that."""
    sizes = [2_000_000]
    for came in (300_000, 600_000, 1_200_000, 1_300_000, 8_000_000, 2_000_000, 400_000):
        sizes.append(next_bytes(sizes[-1], came, 2_000_000))
    assert sizes == [2_000_000, 4_000_000, 8_000_000, BARE_BYTES_MAX, BARE_BYTES_MAX, 2_000_000, 2_000_000, 4_000_000]
    assert next_bytes(2 * BARE_BYTES_MAX, 1, 2 * BARE_BYTES_MAX) == 2 * BARE_BYTES_MAX


def test_a_schema_is_checked(runtime: Runtime) -> None:
    asked = query(runtime, "plain")
    check_schema(asked, schema(*ALL))
    for wrong, said in (
        (schema("offset", offset="integer"), "column `offset` must be bigint, not int"),
        (schema("value", value="string"), "column `value` must be binary, not string"),
        (schema("size", size="long"), "unknown column size; braidlog has key, value"),
        (schema("_error"), "column _error exists only with a valueFormat other than binary"),
    ):
        with pytest.raises(ColumnError, match=said):
            check_schema(asked, wrong)
    check_schema(query(runtime, "plain", valueFormat="string"), schema("value", "_error", value="string"))


def test_batches_stay_small_and_a_large_one_is_sliced(runtime: Runtime) -> None:
    topic = runtime.name("many")
    runtime.write(topic, 0, [b"x"] * 200_000)
    asked = query(runtime, topic)
    (wanted,) = whole(asked)
    sizes = [batch.num_rows for batch in batches(asked, wanted, "offset")]
    assert sum(sizes) == 200_000
    assert max(sizes) < 2 * 64 * 1024
    assert min(sizes[:-1]) >= 64 * 1024  # small fetches do not make small batches


def test_no_more_is_fetched_than_the_window_allows(runtime: Runtime) -> None:
    topic = runtime.name("window")
    for _ in range(12):
        runtime.write(topic, 0, [b"x" * 10_000] * 10)
    with borrowed(runtime.url, committed_only=True) as connection:
        ahead = Ahead(connection, (topic, 0), 100_000, 0, 120)
        held = iter(ahead)
        next(held)
        turns = 0
        while ahead.waiting_max < WINDOW or turns < 50:
            # Each question takes a turn of the loop that fetches: it had time for more, and took none.
            connection.ask(lambda: connection.reader.offsets({(topic, 0): LATEST}))
            turns += 1
            assert turns < 100_000
        seen = [len(chunk.data) for chunk in held]
        assert ahead.read_upto == 120
        assert len(seen) >= 10
        assert ahead.waiting_max == WINDOW


def test_a_reader_that_stops_early_leaves_a_connection_that_works(runtime: Runtime) -> None:
    asked = query(runtime, "plain", fetchBytes="1")
    wanted = whole(asked)[0]
    for _ in range(3):
        held = read_chunks(asked, wanted)
        next(held)
        del held
        gc.collect()
    assert sum(batch.num_rows for batch in batches(asked, wanted)) == wanted.end


def test_connections_are_kept_for_the_next_task(runtime: Runtime) -> None:
    with borrowed(runtime.url, committed_only=True) as first, borrowed(runtime.url, committed_only=True) as second:
        assert first is not second
    with borrowed(runtime.url, committed_only=True) as third:
        assert third in (first, second)
    with borrowed(runtime.url, committed_only=False) as other:
        assert other not in (first, second)


@pytest.mark.parametrize("folder", [False, True], ids=["server", "folder"])
def test_what_goes_between_planning_and_reading_is_a_loss(runtime: Runtime, folder: bool) -> None:
    topic = runtime.name("going")
    runtime.write(topic, 0, [b"%d" % at for at in range(10)])
    asked = query(runtime, topic, folder=folder)
    (wanted,) = whole(asked)
    runtime.delete_before(topic, 4)
    with pytest.raises(DataLossError, match=rf"{topic}/0 \[0, 4\): the log starts later"):
        batches(asked, wanted)
    skipping = query(runtime, topic, folder=folder, onDataLoss="skip")
    assert [at for batch in batches(skipping, wanted, "offset") for at in batch.column(0).to_pylist()] == [
        4,
        5,
        6,
        7,
        8,
        9,
    ]
    gone = Range(topic, 0, 0, 3)
    assert batches(skipping, gone) == []


def test_a_batch_that_rots_in_a_folder_is_not_read_though_it_was_whole_before(tmp_path: Path) -> None:
    with Log(str(tmp_path / "data")) as log:
        for value in (b"whole", b"rotten"):
            log.ensure_topic("t").append(value)
        path = Path(log.topic("t").partition(0).segments[0].path)
    asked = Query({"path": str(tmp_path / "data"), "subscribe": "t"}, streaming=False)
    (wanted,) = whole(asked)
    assert len(batches(asked, wanted, "value")[0]) == 2
    rotten, before = bytearray(path.read_bytes()), path.stat()
    rotten[-3] ^= 1
    path.write_bytes(rotten)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # a disk that forgets writes nothing
    with pytest.raises(StorageFault, match="offsets from 1 "):
        batches(asked, wanted, "value")


def test_a_server_that_is_not_there_is_said() -> None:
    connection = Connection(
        "kafka://127.0.0.1:1", committed_only=True, policy=Policy(retry_timeout=0.2, connect_timeout=5)
    )
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1 cannot be reached"):
        connection.ask(lambda: connection.reader.offsets({("t", 0): EARLIEST}))
    connection.close()


def test_a_loss_that_a_task_finds_is_reported_once(runtime: Runtime) -> None:
    topic, report = runtime.name("going"), runtime.name("losses")
    runtime.write(topic, 0, [b"%d" % at for at in range(10)])
    (wanted,) = whole(query(runtime, topic))
    runtime.delete_before(topic, 4)
    reporting = {"servers": runtime.url, "subscribe": topic, "onDataLoss": "report", "lossTopic": report}
    for options in (reporting, reporting, {**reporting, "groupId": "another"}):
        asked = Query(options, streaming=False)
        assert sum(batch.num_rows for batch in batches(asked, wanted)) == 6
    runtime.delete_before(topic, 5)
    batches(query(runtime, topic, onDataLoss="report", lossTopic=report), Range(topic, 0, 2, 9))
    with braidlog.connect(runtime.url) as client:
        told = reports(client, report)
    assert [(each.reader, each.topic, each.partition, each.start, each.end) for each in told] == [
        (None, topic, 0, 0, 4),
        ("another", topic, 0, 0, 4),
        (None, topic, 0, 4, 5),
    ]
    runtime.write(report, 0, [b"not a report"])
    with pytest.raises(OptionError, match="must contain only reports, but offset 3 holds something else"):
        batches(query(runtime, topic, onDataLoss="report", lossTopic=report), wanted)


@pytest.mark.parametrize("folder", [False, True], ids=["server", "folder"])
def test_a_time_from_far_away_stops_nobody(runtime: Runtime, folder: bool) -> None:
    topic = runtime.name("far")
    with braidlog.connect(runtime.url) as client:
        client.admin.create_topic(topic, settings={"message.timestamp.after.max.ms": str(2**63 - 1)})
    for time in (1_700_000_000_000, 2**62, 5):
        runtime.write(topic, 0, [b"x"], timestamp_ms=time)
    asked = query(runtime, topic, folder=folder)
    (wanted,) = whole(asked)
    times = [
        each for batch in batches(asked, wanted, "timestamp") for each in batch.column(0).cast(pa.int64()).to_pylist()
    ]
    assert times == [1_700_000_000_000_000, None, 5_000]


# -- values --------------------------------------------------------------------------------------------------------------

TAGS = {"type": "array", "elementType": "string", "containsNull": True}
STRUCT = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
        {
            "name": "tags",
            "type": {"type": "array", "elementType": "string", "containsNull": True},
            "nullable": True,
            "metadata": {},
        },
    ],
}
JSON: list[tuple[bytes | None, object, str | None]] = [
    (b'{"id": 1, "at": "2024-01-02T03:04:05Z", "tags": ["a", null], "more": {}}', (1, ["a", None]), None),
    (b'{"id":2}', (2, None), None),
    (b'{"id":\n3\r\n}', (3, None), None),
    (b"{}", (None, None), None),
    (None, None, None),
    (b"", None, "not a JSON object"),
    (b"null", None, "not a JSON object"),
    (b"5", None, "not a JSON object"),
    (b'{"id":4}{"id":5}', None, "not a JSON object"),
    (b'{"id":4} x', None, "not a JSON object"),
    (b'{"id":', None, "not a JSON object"),
    (b'{"id":"six"}', None, "not of valueSchema"),
    (b'{"id":"six","tags":["x"]}', None, "not of valueSchema"),
    (b'{"id":1.5}', None, "not of valueSchema"),
    (b'{"id":7,"id":8}', None, "not of valueSchema"),
    (b"\xff{}", None, "not UTF-8"),
    (b'{"id":9}', (9, None), None),
]


@pytest.mark.parametrize("bad", ["field", "null"])
def test_json_values_are_structs_and_bad_ones_say_why(runtime: Runtime, bad: str) -> None:
    """Of an object with one field of another type the others are kept, unless asked otherwise."""
    topic = runtime.name("json")
    runtime.write(topic, 0, [value for value, _, _ in JSON])
    fields = "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>"
    asked = query(runtime, topic, valueFormat="json", valueSchema=fields)
    if bad == "null":
        asked = query(runtime, topic, valueFormat="json", valueSchema=fields, badRecords="null")
    (wanted,) = whole(asked)
    kind = schema("offset", "value", "_error", value=STRUCT)
    (batch,) = record_batches(asked, kind, wanted, read_chunks(asked, wanted))
    for (given, meant, why), found in zip(JSON, batch.to_pylist(), strict=True):
        value = found["value"]
        kept = (None, ["x"] if given and b"tags" in given else None)
        wanted_value = kept if bad == "field" and why == "not of valueSchema" else meant
        assert (None if value is None else (value["id"], value["tags"])) == wanted_value, given
        assert (found["_error"] is None) == (why is None), given
        assert why is None or why in found["_error"], given
    assert batch.to_pylist()[0]["value"]["at"].isoformat() == "2024-01-02T03:04:05+00:00"
    only = schema("_error")
    (errors,) = record_batches(asked, only, wanted, read_chunks(asked, wanted))
    assert errors.column(0)[5].as_py().startswith("not a JSON object")
    failing = query(runtime, topic, valueFormat="json", valueSchema="id BIGINT", badRecords="fail")
    with pytest.raises(ValueError, match=rf"{topic}/0 offset 5: not a JSON object"):
        list(record_batches(failing, schema("value", value=STRUCT), wanted, read_chunks(failing, wanted)))


def test_a_type_that_json_is_not_read_as_is_refused(runtime: Runtime) -> None:
    asked = query(runtime, "plain", valueFormat="json", valueSchema="m MAP<STRING, INT>")
    kind = {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True}
    struct = {"type": "struct", "fields": [{"name": "m", "type": kind, "nullable": True, "metadata": {}}]}
    with pytest.raises(ValueError, match="option valueSchema"):
        list(record_batches(asked, schema("value", value=struct), whole(asked)[0], []))


def test_texts(runtime: Runtime) -> None:
    topic = runtime.name("text")
    runtime.write(topic, 0, ["é".encode(), None, b"\xff", b""])
    asked = query(runtime, topic, valueFormat="string")
    (wanted,) = whole(asked)
    (batch,) = record_batches(asked, schema("value", "_error", value="string"), wanted, read_chunks(asked, wanted))
    assert batch.column("value").to_pylist() == ["é", None, None, ""]
    assert [why is not None for why in batch.column("_error").to_pylist()] == [False, False, True, False]


# -- a node that goes and comes back ---------------------------------------------------------------------------------------


def test_a_kept_connection_outlives_a_node(braid_server: ServerProcess) -> None:
    with braidlog.connect(f"kafka://127.0.0.1:{braid_server.ports['kafka']}") as client:
        client.admin.create_topic("t")
        client.producer().send_and_wait("t", b"kept")
    asked = Query({"servers": f"127.0.0.1:{braid_server.ports['kafka']}", "subscribe": "t"}, streaming=False)
    (wanted,) = whole(asked)
    assert batches(asked, wanted, "value")[0].column(0).to_pylist() == [b"kept"]
    braid_server.kill()
    braid_server.restart()
    assert batches(asked, wanted, "value")[0].column(0).to_pylist() == [b"kept"]
    close_idle()
