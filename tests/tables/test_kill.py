"""A worker that is killed at every point of a turn: each record is a row once, and nothing else is left."""

from pathlib import Path

import msgspec
import pytest
from tests.tables.filled import fill
from tests.tables.killed import turn_and_die
from tests.tables.turned import NOW, expected_of, plan_of, rows_of, table_of, turn

from braidlog.model.record import NewRecord
from braidlog.storage.embedded_log import Log, Topic
from braidlog.tables import catalog
from braidlog.tables.plan import Plan

COMMITS = ("file", "before", "after")
"""Points of a turn that adds rows: within a file, between the files and the commit, between the commit and the answer."""


def folder_of(plan: Plan) -> Path:
    return Path(catalog.data_folder(table_of(plan)).removeprefix("file://"))


def written(plan: Plan) -> set[str]:
    folder = folder_of(plan)
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def named(plan: Plan) -> set[str]:
    """Files that have the table's rows."""
    return {task.file.file_path.rpartition("/")[2] for task in table_of(plan).scan().plan_files()}


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    topic = Log(str(tmp_path / "data")).create_topic("orders", partitions=2, segment_bytes=4096)
    fill(topic, 40)
    return topic


@pytest.mark.parametrize("point", COMMITS)
def test_while_rows_are_added(topic: Topic, tmp_path: Path, point: str) -> None:
    plan = plan_of(topic, tmp_path / "w")
    turn_and_die(plan, point)
    left = written(plan)
    assert left
    done = turn(plan)
    assert rows_of(table_of(plan)) == expected_of(topic)
    assert written(plan) == named(plan), "what never became rows is removed"
    assert (named(plan) == left) is (point == "after")
    assert done.rows == len(expected_of(topic))


@pytest.mark.parametrize("point", COMMITS)
def test_before_the_log_is_compacted_and_trimmed(tmp_path: Path, point: str) -> None:
    """What was committed stays; of the rest, rows are what the log has when it is turned again."""
    topic = Log(str(tmp_path / "data")).create_topic("t", segment_bytes=4096, index_interval_bytes=256, compact=True)
    topic.append_many([NewRecord(b"a%d" % n * 50, b"%d" % (n % 7)) for n in range(60)])
    plan, before = plan_of(topic, tmp_path / "w"), expected_of(topic)
    turn_and_die(plan, point)
    topic.append_many([NewRecord(b"b%d" % n * 50, b"%d" % (n % 5)) for n in range(60)])
    plan_of(topic, tmp_path / "w")  # closes segments: only those are compacted
    topic.compact()
    topic.delete_before(58)
    assert turn(plan).missed == ([] if point == "after" else [0]), "the files that were planned are others now"
    turn(plan_of(topic, tmp_path / "w"))
    now = expected_of(topic)
    assert len(now) < 30
    assert rows_of(table_of(plan)) == (before + [row for row in now if row[1] >= 60] if point == "after" else now)
    assert written(plan) == named(plan)


@pytest.mark.parametrize("point", ["before retention", "after retention", "after snapshots", "sweep"])
def test_while_old_rows_go(tmp_path: Path, point: str) -> None:
    topic = Log(str(tmp_path / "data")).create_topic("t")
    for at in (NOW, NOW + 100, NOW + 1000):
        topic.append(b"%d" % at, timestamp_ms=at)
        turn(plan_of(topic, tmp_path / "w"))
    topic.append(b"new", timestamp_ms=NOW + 2000)
    much_later = 2 * NOW  # snapshots are a day old by then, and what no snapshot names is removed
    plan = plan_of(topic, tmp_path / "w", retention_ms=much_later - NOW - 500, now_ms=much_later)
    turn_and_die(plan, point)
    assert {row[1] for row in rows_of(table_of(plan))} == ({0, 1, 2, 3} if point == "before retention" else {2, 3})
    done = turn(plan)
    assert rows_of(table_of(plan)) == [row for row in expected_of(topic) if row[1] >= 2]
    assert (done.rows, done.offsets) == (2, {0: 4})
    assert written(plan) == named(plan)
    table = table_of(plan)
    metadata = {f"{table.location()}/metadata/{path.name}" for path in (folder_of(plan).parent / "metadata").iterdir()}
    assert metadata == {*catalog._files_of_all(table)} - {
        f"{catalog.data_folder(table)}/{name}" for name in named(plan)
    }


@pytest.mark.parametrize("point", COMMITS)
def test_before_the_topic_is_deleted_and_made_again(topic: Topic, tmp_path: Path, point: str) -> None:
    old, records = plan_of(topic, tmp_path / "w"), expected_of(topic)
    turn_and_die(old, point)
    again = Log(str(tmp_path / "other")).create_topic("orders", partitions=2)
    again.append(b"new", partition=1)
    new = plan_of(again, tmp_path / "w")
    turn_and_die(new, point)
    turn(new)
    assert rows_of(table_of(new)) == [(1, 0, None, b"new")]
    assert written(new) == named(new)
    kept = msgspec.structs.replace(old, topic=f"orders_{old.topic_id[:8]}")
    assert rows_of(table_of(kept)) == (records if point == "after" else [])
