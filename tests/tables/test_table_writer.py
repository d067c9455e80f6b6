"""Closed segments as rows: what pyiceberg reads from the table is what a reader of the log sees, once, whoever is killed."""

import json
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException, NotInstalledError, ValidationError
from tests.storage.building import marker
from tests.tables.filled import fill
from tests.tables.turned import NOW, expected_of, plan_of, rows_of, table_of, turn

from braidlog.codec.batch.records import encode_batch
from braidlog.codec.columns.arrow import PieceLimits
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.record import NewRecord
from braidlog.model.settings import TableForm
from braidlog.storage.embedded_log import Log, Topic
from braidlog.tables import catalog
from braidlog.tables.plan import Plan


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """Two partitions, several segments each; plain, compressed and aborted batches."""
    topic = Log(str(tmp_path / "data")).create_topic(
        "or.ders", partitions=2, segment_bytes=4096, index_interval_bytes=256
    )
    fill(topic, 40)
    return topic


def test_committed_records_are_rows_once(topic: Topic, tmp_path: Path) -> None:
    plan = plan_of(topic, tmp_path / "w")
    done = turn(plan)
    assert done.offsets == {0: topic.end_offset(0), 1: topic.end_offset(1)}
    expected = expected_of(topic)
    table = table_of(plan)
    assert rows_of(table) == expected
    assert (done.rows, done.files) == (len(expected), 2)
    assert b"never" not in {value for *_, value in rows_of(table)}
    assert turn(plan) == done, "what is turned is not turned again"
    first = table.scan(row_filter="partition = 1 and offset = 0").to_arrow().to_pylist()[0]
    assert (first["headers"], first["timestamp_type"]) == ([{"key": "h", "value": b"x"}], 0)
    assert int(first["timestamp"].timestamp() * 1000) == NOW + 1
    fill(topic, 10)
    more = turn(plan_of(topic, tmp_path / "w"))
    assert rows_of(table_of(plan)) == expected_of(topic)
    assert more.rows > done.rows
    snapshot = table_of(plan).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["braidlog.offset.1"] == str(topic.end_offset(1))


def test_what_the_log_deleted_is_no_row_and_what_it_deletes_later_stays_one(topic: Topic, tmp_path: Path) -> None:
    topic.delete_before(3, partition=1)
    plan = plan_of(topic, tmp_path / "w")
    turn(plan)
    rows = rows_of(table_of(plan))
    assert next(offset for number, offset, *_ in rows if number == 1) == 3
    topic.delete_before(topic.end_offset(1), partition=1)
    turn(plan_of(topic, tmp_path / "w"))
    assert rows_of(table_of(plan)) == rows


def test_compaction_before_and_after_a_turn(tmp_path: Path) -> None:
    topic = Log(str(tmp_path / "data")).create_topic("t", segment_bytes=4096, index_interval_bytes=256, compact=True)
    topic.append_many([NewRecord(b"a%d" % n * 50, b"%d" % (n % 3)) for n in range(60)])
    plan = plan_of(topic, tmp_path / "w")
    turn(plan)
    before = rows_of(table_of(plan))
    old = plan_of(topic, tmp_path / "w")
    topic.append_many([NewRecord(b"b%d" % n * 50, b"%d" % (n % 3)) for n in range(60)])
    stale = plan_of(topic, tmp_path / "w")
    topic.compact()
    assert turn(stale).missed == [0], "the files that were planned are others now"
    done = turn(plan_of(topic, tmp_path / "w"))
    assert done.offsets == {0: topic.end_offset()}
    rows = rows_of(table_of(plan))
    assert rows[: len(before)] == before
    assert rows[len(before) :] == [row for row in expected_of(topic) if row[1] >= 60]
    assert turn(old).missed == []


def test_two_who_turn_the_same(topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an old leader and its successor do: one commit wins, the other's files go."""
    plan = plan_of(topic, tmp_path / "w")
    only = msgspec.structs.replace(plan, parts=plan.parts[:1])
    commit = catalog.commit

    def late(*given: object) -> None:
        monkeypatch.setattr(catalog, "commit", commit)
        turn(only)
        commit(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(catalog, "commit", late)
    done = turn(plan)
    assert rows_of(table_of(plan)) == expected_of(topic)
    assert done.files == 2
    folder = Path(catalog.data_folder(table_of(plan)).removeprefix("file://"))
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("theirs", "ours", "columns"),
    [
        (b'{"theirs": 1}', b'{"ours": 1}', {"theirs": [None, 1], "ours": [1, None]}),
        (b'{"n": 1}', b'{"n": "text"}', {"n": [None, 1]}),
        (b'{"ID": 1}', b'{"id": 2}', {"ID": [None, 1]}),
    ],
)
def test_two_who_add_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: bytes, ours: bytes, columns: dict[str, list[object]]
) -> None:
    """As two nodes do that lead partitions of one topic: the second has its columns too, where they go with the first's."""
    topic = Log(str(tmp_path / "data")).create_topic("t", partitions=2)
    topic.append(ours, partition=0)
    topic.append(theirs, partition=1)
    plan = plan_of(topic, tmp_path / "w", form=TableForm.JSON)
    own, other = (msgspec.structs.replace(plan, parts=[part]) for part in plan.parts)
    commit = catalog.commit

    def late(*given: object) -> None:
        monkeypatch.setattr(catalog, "commit", commit)
        turn(other)
        commit(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(catalog, "commit", late)
    assert turn(own).files == 2
    assert rows_of(table_of(plan)) == expected_of(topic)
    found = table_of(plan).scan().to_arrow().sort_by("partition").select(list(columns)).to_pydict()
    assert found == columns
    folder = Path(catalog.data_folder(table_of(plan)).removeprefix("file://"))
    assert len(list(folder.iterdir())) == 2, "what was written with other columns is removed"


def test_a_catalog_that_always_refuses(topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(topic, tmp_path / "w")

    def refuse(*_: object) -> None:
        raise CommitFailedException("no")

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit", refuse)
        with pytest.raises(BrokerError, match=r"cannot write the table of topic 'or\.ders': CommitFailed") as refused:
            turn(plan)
    assert refused.value.reason is Reason.UNAVAILABLE
    turn(plan)
    assert rows_of(table_of(plan)) == expected_of(topic)


@pytest.mark.parametrize(
    "error", [ValueError("odd"), ValidationError("odd"), KeyError("odd"), NotInstalledError("odd")]
)
def test_whatever_a_catalog_ends_in_is_told_with_the_topic(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(catalog, "open_catalog", refuse)
    with pytest.raises(
        BrokerError, match=rf"cannot write the table of topic 'or\.ders': {type(error).__name__}: .*odd"
    ):
        turn(plan_of(topic, tmp_path / "w"))


def test_only_aborted_records_move_the_offset(tmp_path: Path) -> None:
    topic = Log(str(tmp_path / "data")).create_topic("t")
    batch = encode_batch(
        [b"never"], base_timestamp=NOW, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    topic.partition().append(batch, now_ms=NOW)
    topic.partition().append_marker(marker(7, commit=False), now_ms=NOW)
    plan = plan_of(topic, tmp_path / "w")
    done = turn(plan)
    assert (done.offsets, done.rows, done.files) == ({0: 2}, 0, 0)
    topic.append(b"seen")
    turn(plan_of(topic, tmp_path / "w"))
    assert rows_of(table_of(plan)) == [(0, 2, None, b"seen")]


def test_a_topic_made_again_has_a_table_of_its_own(topic: Topic, tmp_path: Path) -> None:
    first = plan_of(topic, tmp_path / "w")
    turn(first)
    rows = rows_of(table_of(first))
    log = Log(str(tmp_path / "other"))
    again = log.create_topic("or.ders")
    again.append(b"new")
    second = plan_of(again, tmp_path / "w")
    turn(second)
    assert rows_of(table_of(second)) == [(0, 0, None, b"new")]
    kept = msgspec.structs.replace(first, topic=f"or.ders_{first.topic_id[:8]}")
    assert rows_of(table_of(kept)) == rows


def test_a_table_of_somebody_else_is_left_alone(topic: Topic, tmp_path: Path) -> None:
    plan = plan_of(topic, tmp_path / "w")
    turn(plan)
    with table_of(plan).transaction() as transaction:
        transaction.remove_properties(catalog.TOPIC_ID)
    with pytest.raises(BrokerError, match="that belongs to no topic"):
        turn(plan)


def test_old_rows_go_by_the_tables_own_retention(tmp_path: Path) -> None:
    topic = Log(str(tmp_path / "data")).create_topic("t")
    plan: Plan | None = None
    for at in (NOW, NOW + 1000, NOW + 5000):
        topic.append(b"%d" % at, timestamp_ms=at)
        plan = plan_of(topic, tmp_path / "w")
        turn(plan)
    assert plan is not None
    turn(plan_of(topic, tmp_path / "w", retention_ms=3000, now_ms=NOW + 4000))
    assert [row[1] for row in rows_of(table_of(plan))] == [1, 2]
    day = catalog.KEPT_SNAPSHOTS_MS
    done = turn(plan_of(topic, tmp_path / "w", retention_ms=day, now_ms=2 * NOW))
    assert (done.rows, done.offsets) == (0, {0: 3})
    folder = Path(catalog.data_folder(table_of(plan)).removeprefix("file://"))
    assert not list(folder.iterdir()), "no snapshot names them any more"
    table = table_of(plan)
    named = {*catalog._files_of_all(table)}
    assert {f"{table.location()}/metadata/{path.name}" for path in (folder.parent / "metadata").iterdir()} == named


def test_fields_of_json_objects_are_columns(tmp_path: Path) -> None:
    topic = Log(str(tmp_path / "data")).create_topic("t")
    values = [
        {"user": "ann", "n": 1, "ratio": 1, "ok": True, "tags": ["a"], "offset": 9, "ID": 1, "a.b": 1},
        {"user": "bob", "n": None, "ratio": 0.5, "id": 2, "deep": {"x": 1}},
    ]
    for value in values:
        topic.append(json.dumps(value).encode())
    for odd in (b"no json", b"[1]", b'{"user": 5, "n": 1.5, "ok": "yes"}', None, b'"\xff"'):
        topic.append(odd)
    plan = plan_of(topic, tmp_path / "w", form=TableForm.JSON)
    turn(plan)
    assert rows_of(table_of(plan)) == expected_of(topic), "every value is kept as it was"
    names = ["user", "n", "ratio", "ok", "tags", "_offset", "ID", "deep"]
    table = table_of(plan)
    assert [field.name for field in table.schema().fields][7:] == names
    rows = table.scan().to_arrow().sort_by("offset").select(names).to_pylist()
    assert list(rows[0].values()) == ["ann", 1, 1.0, True, '["a"]', 9, 1, None]
    assert list(rows[1].values()) == ["bob", None, 0.5, None, None, None, None, '{"x":1}']
    assert [value for row in rows[2:] for value in row.values() if value is not None] == [1.5], "n is a double by now"
    topic.append(b'{"new": "field", "user": "eve"}')
    turn(plan_of(topic, tmp_path / "w", form=TableForm.JSON))
    last = table_of(plan).scan(row_filter="new = 'field'", selected_fields=("offset", "user")).to_arrow().to_pylist()
    assert last == [{"offset": 7, "user": "eve"}]


def test_columns_that_come_within_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.tables.table_writer.GROUP_ROWS", 1)
    monkeypatch.setattr("braidlog.tables.segments.PIECES", PieceLimits(1, 1))
    topic = Log(str(tmp_path / "data")).create_topic("t")
    for n in range(3):
        topic.append(b'{"f%d": %d}' % (n, n))
    plan = plan_of(topic, tmp_path / "w", form=TableForm.JSON)
    assert turn(plan).files == 3
    rows = table_of(plan).scan(selected_fields=("f0", "f1", "f2")).to_arrow().to_pylist()
    assert sorted(rows, key=str) == sorted(
        ({f"f{n}": n if n == at else None for n in range(3)} for at in range(3)), key=str
    )


def test_fields_are_taken_from_slices_of_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they were looked at together: what comes later is null before, and whole numbers are doubles where one is none."""
    monkeypatch.setattr("braidlog.tables.values.SLICE_BYTES", 1)
    topic = Log(str(tmp_path / "data")).create_topic("t")
    topic.append(b'{"n": 1, "m": 1}')
    topic.append(b'{"n": 1.5, "late": "x", "m": 2}')
    plan = plan_of(topic, tmp_path / "w", form=TableForm.JSON)
    assert turn(plan).files == 1
    names = ("n", "m", "late")
    rows = table_of(plan).scan(selected_fields=("offset", *names)).to_arrow().sort_by("offset").select(names)
    assert rows.to_pylist() == [{"n": 1.0, "m": 1, "late": None}, {"n": 1.5, "m": 2, "late": "x"}]
    assert [str(rows.schema.field(name).type) for name in ("n", "m")] == ["double", "int64"]


def test_damage_is_told_and_stays_out(topic: Topic, tmp_path: Path) -> None:
    plan = plan_of(topic, tmp_path / "w")
    path = Path(plan.parts[1].sources[1].path)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    done = turn(plan)
    assert done.unread == [1]
    assert done.offsets == {0: topic.end_offset(0)}
    assert rows_of(table_of(plan)) == [(0, each.offset, each.key, each.value) for each in topic.iterate(partition=0)]


def test_parquet_is_plain(topic: Topic, tmp_path: Path) -> None:
    """A file is read by itself: columns by name, offsets ascending, statistics for who skips."""
    plan = plan_of(topic, tmp_path / "w")
    turn(plan)
    (path,) = [task.file.file_path for task in table_of(plan).scan("partition = 1").plan_files()]
    with pq.ParquetFile(path.removeprefix("file://")) as file:
        statistics = file.metadata.row_group(0).column(0).statistics
        assert (statistics.min, statistics.max) == (0, topic.end_offset(1) - 1)
        assert file.read(["offset"])["offset"].to_pylist() == list(range(topic.end_offset(1)))


def test_values_that_do_not_repeat_are_in_no_dictionary(tmp_path: Path) -> None:
    """But for the first few: whoever reads a column looks every value up in it otherwise."""
    topic = Log(str(tmp_path / "data")).create_topic("t")
    values = [b'{"id": %d, "word": "w%d"}' % (7**20 * n % 2**62, n % 9) for n in range(20_000)]
    topic.partition().append(encode_batch(values, base_timestamp=NOW), now_ms=NOW)
    plan = plan_of(topic, tmp_path / "w", form=TableForm.JSON)
    turn(plan)
    (path,) = [task.file.file_path for task in table_of(plan).scan().plan_files()]
    with pq.ParquetFile(path.removeprefix("file://")) as file:
        group = file.metadata.row_group(0)
        found = {
            each.path_in_schema: each.data_page_offset - each.dictionary_page_offset
            for each in (group.column(at) for at in range(group.num_columns))
            if each.has_dictionary_page
        }
        assert file.read(["word"])["word"].to_pylist() == [f"w{n % 9}" for n in range(20_000)]
    assert found["id"] <= 80_000, "of 160,000 bytes"
    assert found["word"] < 100
