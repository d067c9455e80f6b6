"""A whole pipeline against a real node: what it makes of a topic is what plain Python makes of it, however it was run."""

import json
import os
import random
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.pipeline.shop import Shop, expected, read_all, write_project
from tests.spark.pipeline.tables import Cut, rows_of

from braidlog import BrokerError, kv
from braidlog.spark.pipeline import operations
from braidlog.spark.pipeline.layers import tables
from braidlog.spark.pipeline.operations import Wishes
from braidlog.spark.pipeline.project import Project, open_project
from braidlog.spark.pipeline.replay.backfill import Filled
from braidlog.spark.pipeline.stage_runner import StageFailed, StopRequest
from braidlog.spark.pipeline.status import status
from braidlog.testing.server import ServerProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("node") / "data", admin=True) as found:
        yield found


def run_once(spark: SparkSession, folder: Path, *only: str) -> Project:
    project = open_project(folder)
    operations.run(spark, project, Wishes(once=True, only=frozenset(only)), StopRequest(), lambda _: None)
    return project


def check(node: ServerProcess, project: Project) -> None:
    """Every table, topic and key is what plain Python makes of the topic."""
    log = read_all(node, "orders")
    wanted = expected(log)

    bronze = rows_of(project, "bronze")
    assert sorted((row.partition, row.offset, row.key, row.value) for row in bronze) == sorted(
        (each.partition, each.offset, each.key, each.value) for each in log
    )
    headers = {(row.partition, row.offset): row.headers or [] for row in bronze}
    for each in log:
        kept = [(header["key"], header["value"]) for header in headers[each.partition, each.offset]]
        assert kept == list(each.headers)

    silver = rows_of(project, "silver")
    found = {row._id: row for row in silver}
    assert len(found) == len(silver)
    assert found.keys() == wanted.silver.keys()
    for name, event in wanted.silver.items():
        row = found[name]
        assert (row.id, row.type, row.version, row.amount, row._key) == (
            event["id"],
            event["type"],
            event["version"],
            event["amount"],
            event["key"],
        )
        assert row.at == row._time == event["at"]

    gaps = rows_of(project, "gaps")
    assert {(row.aggregate, row.from_version, row.to_version) for row in gaps if row.kind == "gap"} == wanted.gaps
    assert sorted((row.aggregate, row.from_version) for row in gaps if row.kind == "again") == wanted.again

    windows = rows_of(project, "windows")
    mine = {(row.window_start, row.type): (row.events, row.latency_p50, row.latency_p99) for row in windows}
    assert len(mine) == len(windows)
    assert mine == wanted.windows

    latest = rows_of(project, "latest")
    assert sorted((row.id, row.version, row.amount) for row in latest) == sorted(
        (order, event["version"], event["amount"]) for order, event in wanted.state.items()
    )

    with kv.connect(f"mayfly://127.0.0.1:{node.ports['mayfly']}") as store:
        state = {order: json.loads(store.get(f"{project.name}:{order}") or b"null") for order in wanted.state}
    assert {order: (event["version"], event["amount"]) for order, event in state.items()} == {
        order: (event["version"], event["amount"]) for order, event in wanted.state.items()
    }


def dead_letters(node: ServerProcess, topic: str) -> list[tuple[tuple[int, int], str, bytes | None]]:
    found = []
    for letter in read_all(node, topic):
        headers = {name: (value or b"").decode() for name, value in letter.headers}
        assert headers["braid.topic"] == "orders"
        place = int(headers["braid.partition"]), int(headers["braid.offset"])
        found.append((place, headers["braid.reason"], letter.value))
    return found


def test_a_pipeline_from_end_to_end(spark: SparkSession, node: ServerProcess, tmp_path: Path) -> None:
    shop = Shop(node, seed=20260501)
    shop.send(150)
    folder = write_project(tmp_path / "shop", node, admin=node.admin_url)
    project = run_once(spark, folder)
    check(node, project)
    shop.send(150)
    run_once(spark, folder)
    check(node, project)
    run_once(spark, folder, "silver", "bronze")  # nothing new
    check(node, project)

    log = read_all(node, "orders")
    wanted = expected(log)
    values = {(each.partition, each.offset): each.value for each in log}
    dead = dead_letters(node, "shop.dead-letters")
    assert {place: reason for place, reason, _ in dead} == wanted.dead
    assert len(dead) == len(wanted.dead)
    assert all(values[place] == value for place, _, value in dead)

    # Silver keeps the order of each key; what is published is what the table holds.
    last: dict[str, int] = {}
    for each in read_all(node, "shop.silver"):
        row = json.loads(each.value or b"")
        assert last.get(row["_key"], -1) < row["_offset"]
        last[row["_key"]] = row["_offset"]
    assert len(read_all(node, "shop.windows")) == len(wanted.windows)

    found = {each.stage: each for each in status(project, operations.topic_ends(project)).stages}
    assert {each.lag for each in found.values()} == {0}
    assert found["silver"].violations == {"not_negative": wanted.negative}
    assert found["silver"].rows == found["bronze"].rows == found["bronze"].written == len(log)
    assert (found["silver"].written, found["silver"].dead) == (len(wanted.silver), 0)
    assert (found["dead-letters"].rows, found["dead-letters"].dead) == (len(log), len(wanted.dead))
    assert found["windows"].violations == {"busy": sum(count <= 3 for count, _, _ in wanted.windows.values())}

    with urllib.request.urlopen(f"{node.admin_url}/api/spark/queries", timeout=60) as answer:
        queries = {each["name"]: each for each in json.load(answer)["queries"]}
    assert queries.keys() == {f"shop.{stage}" for stage in found}
    assert {(each["pipeline"], each["state"]) for each in queries.values()} == {("shop", "stopped")}
    with urllib.request.urlopen(f"{node.admin_url}/spark/shop", timeout=60) as answer:
        page = answer.read().decode()
    assert all(f"<code>{project.table(table)}</code>" in page for table in ("bronze", "silver", "windows"))

    replays(spark, node, project)


def replays(spark: SparkSession, node: ServerProcess, project: Project) -> None:
    """After a change of a transform: from the log, from bronze; the tables are as if it had always been so. A plain run takes one
    of the two, `make spark` (SPARK=full) both."""
    origins = ["earliest", "bronze"]
    if os.environ.get("SPARK") != "full":
        origins = [random.choice(origins)]
        print(f"replayed from {origins[0]}")
    (project.folder / "transforms" / "loud.sql").write_text("SELECT *, lower(type) AS quiet FROM input")
    for generation, origin in enumerate(origins, 2):
        plan = operations.plan_replay(project, origin)
        assert plan.generation == generation
        operations.run(spark, project, Wishes(once=True), StopRequest(), lambda _: None, plan)
        check(node, project)
        assert {row.quiet for row in rows_of(project, "silver")} == {"placed", "paid"}
        assert not (project.storage / "replaced").exists()
        with pytest.raises(BrokerError, match="another replay has begun"):
            operations.run(spark, project, Wishes(once=True), StopRequest(), lambda _: None, plan)


def test_a_backfill_adds_what_is_missing_once(
    spark: SparkSession, node: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "returns"
    shop = Shop(node, seed=7, topic=topic)
    shop.send(60)
    folder = write_project(
        tmp_path / "returns", node, name="returns", topic=topic, starting="latest", table_format="iceberg", more=""
    )
    project = open_project(folder)
    with pytest.raises(BrokerError, match="has not run yet"):
        operations.backfill(spark, project, "earliest", "latest", dry_run=True)
    run_once(spark, folder)
    shop.send(60)
    run_once(spark, folder)
    log = read_all(node, topic)
    before = len(rows_of(project, "bronze"))
    assert 60 <= before < len(log)

    planned = operations.backfill(spark, project, "earliest", "latest", dry_run=True)
    assert len(rows_of(project, "bronze")) == before
    monkeypatch.setattr(tables, "append", Cut(tables.append, "windows"))
    with pytest.raises(Cut.Short):
        operations.backfill(spark, project, "earliest", "latest", dry_run=False)
    monkeypatch.undo()
    done = operations.backfill(spark, project, "earliest", "latest", dry_run=False)
    assert (planned.records, planned.added["bronze"]) == (len(log), len(log) - before)
    assert done == Filled(planned.records, {**planned.added, "bronze": 0, "silver": 0}, planned.kept)
    assert done.added["windows"] > 0
    wanted = expected(log)
    places = [(row.partition, row.offset) for row in rows_of(project, "bronze")]
    assert sorted(places) == sorted((each.partition, each.offset) for each in log)
    names = [row._id for row in rows_of(project, "silver")]
    assert len(names) == len(set(names))
    assert set(names) == wanted.silver.keys()
    windows = {(row.window_start, row.type): row.events for row in rows_of(project, "windows")}
    assert windows.keys() == wanted.windows.keys()
    # A window that the stream had closed with fewer events stays as it was, and that is told.
    fewer = [key for key, events in windows.items() if events != wanted.windows[key][0]]
    assert len(fewer) <= done.kept["windows"]
    again = operations.backfill(spark, project, "earliest", "latest", dry_run=False)
    assert set(again.added.values()) == {0}

    # An expectation that must hold stops the stage before anything is written.
    text = (folder / "pipeline.toml").read_text().replace('on_violation = "drop"', 'on_violation = "fail"')
    (folder / "pipeline.toml").write_text(text)
    shop.send(60)
    with pytest.raises(
        StageFailed, match="stage silver failed: expectation not_negative of silver is broken by"
    ) as caught:
        run_once(spark, folder)
    assert caught.value.by_expectation
    assert [row._id for row in rows_of(project, "silver")] == names
