"""A pipeline on Spark Declarative Pipelines, as `init --template sdp` writes it, by its commands: every row once, whatever Spark
repeats."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from tests.debian import have
from tests.spark.pipeline.shop import LATE, SIZE, Shop, read_all
from tests.spark.pipeline.tables import rows_of
from tests.spark.pipeline.test_commands import LOOK_SECONDS, SECONDS_MAX, braid

from braidlog import BrokerError
from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.spark.pipeline.declarative.definitions import Declared, declaring
from braidlog.spark.pipeline.ledger import Generation, Ledger
from braidlog.spark.pipeline.operations import check_backfill, check_dry_run, topic_ends
from braidlog.spark.pipeline.project import Project, open_project
from braidlog.spark.pipeline.replay import replay
from braidlog.spark.pipeline.replay.backfill import Filled
from braidlog.spark.pipeline.status import status
from braidlog.testing.server import ServerProcess

FLOWS = ["bronze", "dead_letters", "silver", "windows"]
FILLED = ("silver", "windows")
MIDDLE = 70
"""An offset of both partitions, about half of their records before it."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    have("java", "openjdk-17-jre-headless")
    with ServerProcess(tmp_path_factory.mktemp("node") / "data") as found:
        yield found


def from_template(folder: Path, node: ServerProcess) -> Project:
    subprocess.run(
        braid("pipeline", "init", str(folder), "--template", "sdp"), capture_output=True, timeout=60, check=True
    )
    changes = {
        "pipeline.toml": {
            'servers = "127.0.0.1:9092"': f'servers = "127.0.0.1:{node.ports["kafka"]}"',
            'topics = ["shop"]': 'topics = ["orders"]',
            '# admin = "http://127.0.0.1:9644"': 'admin = ""',
            '# trigger = "10 seconds"': 'trigger = "200 milliseconds"',
        },
        "definitions/layers.py": {'within="10 minutes"': f'within="{LATE // timedelta(minutes=1)} minute"'},
    }
    for name, pairs in changes.items():
        text = (folder / name).read_text()
        for old, new in pairs.items():
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text)
    return open_project(folder)


def events_of(log: list[ConsumedRecord]) -> dict[tuple[str, int], dict[str, object]]:
    """What is good, by what makes it the same."""
    found = {}
    for record in log:
        try:
            event = json.loads(record.value or b"null")
        except json.JSONDecodeError:
            continue
        if event and "type" in event and event.get("amount") != "x":
            found[event["id"], event["version"]] = event
    return found


def check_rows(log: list[ConsumedRecord], project: Project) -> None:
    bronze = sorted((row.partition, row.offset) for row in rows_of(project, "bronze"))
    assert bronze == sorted((each.partition, each.offset) for each in log)

    silver = [(row.id, row.version) for row in rows_of(project, "silver")]
    assert sorted(silver) == sorted(key for key, event in events_of(log).items() if event["amount"] >= 0)  # type: ignore[operator]


def check_windows(log: list[ConsumedRecord], project: Project, first: int = 0, *, is_stopped: bool = False) -> None:
    """Every window that is closed is there once, of all its events; one that a stream has counted from an offset on, of those
    from there. Whoever is stopped may have left some to the next run."""
    events, later = events_of(log), events_of([each for each in log if each.offset >= first]).keys()
    moments = {key: datetime.fromisoformat(str(event["at"])) for key, event in events.items()}
    wanted: dict[tuple[datetime, str], list[bool]] = {}
    for key, event in events.items():
        start = moments[key].replace(second=0, microsecond=0)
        if start + SIZE <= max(moments.values()) - LATE:
            wanted.setdefault((start, str(event["type"])), []).append(key in later)
    rows = rows_of(project, "windows")
    counted = {(row.window_start, row.type): row.events for row in rows}
    assert len(counted) == len(rows)
    right = {key: sum(found) or len(found) for key, found in wanted.items()}
    assert counted == {key: count for key, count in right.items() if not is_stopped or key in counted}
    assert first == 0 or any(sum(found) == 0 for found in wanted.values()), "none of them was for the backfill"


def check_dead(node: ServerProcess) -> None:
    """Each once in a generation; the second began in the middle."""
    log = read_all(node, "orders")
    letters = []
    for letter in read_all(node, "shop.dead-letters"):
        headers = {name: (value or b"").decode() for name, value in letter.headers}
        place = int(headers["braid.partition"]), int(headers["braid.offset"])
        letters.append((headers["braid.generation"], *place, headers["braid.reason"]))
    assert len(letters) == len(set(letters))
    bad = {(each.partition, each.offset) for each in log if not events_of([each])}
    assert {letter[1:3] for letter in letters if letter[0] == "2"} == {place for place in bad if place[1] >= MIDDLE}
    early = {letter[1:3] for letter in letters if letter[0] == "1"}
    assert early <= bad
    assert {place for place in bad if place[1] < MIDDLE} <= early
    assert {letter[-1] for letter in letters} == {
        "the value is null",
        "the value does not fit the schema",
        "required and missing: type",
    }


def lines_until(process: "subprocess.Popen[str]", last: str) -> list[str]:
    """What it says; its complaints are in the file `java`."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line.strip())
        if said[-1] == last:
            return said
    pytest.fail(f"it ended after {said}")


def wait_until_read(project: Project, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while {each.lag for each in status(project, topic_ends(project)).stages} != {0}:
        assert time.monotonic() < deadline, "no progress"
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_SECONDS)
            pytest.fail("it ended by itself")


def test_every_row_once_whatever_is_repeated(node: ServerProcess, tmp_path: Path) -> None:
    """Run, replayed from the middle of the log, backfilled before it, and on from there."""
    shop = Shop(node, seed=11)
    shop.send(250)
    project = from_template(tmp_path / "shop", node)
    command = [sys.executable, str(Path(__file__).with_name("declarative_driver.py")), str(project.folder)]
    pipe = subprocess.PIPE
    with (
        (tmp_path / "java").open("w+") as java,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=java, text=True, start_new_session=True) as process,
    ):
        try:
            assert lines_until(process, "done") == [
                "bronze: records → table bronze",
                "parsed: records → view",
                "dead_letters: parsed → topic shop.dead-letters",
                "events: parsed → view",
                "silver: events → table silver",
                "windows: events → table windows",
                "done",
            ]
            assert project.flows() == FLOWS
            log = read_all(node, "orders")
            check_rows(log, project)
            check_windows(log, project)
            replay.begin(project, replay.make_plan(project, str(MIDDLE), topic_ends(project)))
            tell(process, "replay")
            assert lines_until(process, "replayed") == ["replayed"]
            backfilled(log, project, process)
            check_rows(log, project)
            check_windows(log, project, MIDDLE)
            # As if the driver had died between the commit of a sink and Spark's own: it does the last batch again.
            for flow in FLOWS:
                commits = project.checkpoint(flow, 1) / "commits"
                last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
                (commits / str(last)).unlink()
                (commits / f".{last}.crc").unlink(missing_ok=True)
            shop.send(100)
            tell(process, "go on")
            wait_until_read(project, process)
            assert process.stdin is not None
            process.stdin.close()
            assert lines_until(process, "stopped") == ["held", "stopped"]
            assert process.wait(SECONDS_MAX) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    check_dead(node)
    log = read_all(node, "orders")
    check_rows(log, project)
    check_windows(log, project, MIDDLE, is_stopped=True)
    assert any(project.table("silver").glob("day=*"))
    told = {each.stage: each for each in status(project, topic_ends(project)).stages}
    assert list(told) == FLOWS
    assert told["silver"].violations["amount_not_negative"] > 0


def tell(process: "subprocess.Popen[str]", what: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{what}\n")
    process.stdin.flush()


def backfilled(log: list[ConsumedRecord], project: Project, process: "subprocess.Popen[str]") -> None:
    """The replay made silver and windows anew from the middle on; now they get what is before it, and nothing twice."""
    before = {table: len(rows_of(project, table)) for table in FILLED}
    if is_full := os.environ.get("SPARK") == "full":
        killed_backfills(project)
    tell(process, "backfill")
    first, cut, second, last = lines_until(process, "filled")
    assert (cut, last) == ("cut short", "filled")
    planned, done = (msgspec.json.decode(line, type=Filled) for line in (first, second))
    assert planned.records == len(log)
    if not is_full:  # nobody else has filled anything
        found = {table: len(rows_of(project, table)) - before[table] for table in FILLED}
        assert planned.added == {"bronze": 0, **found}
        assert min(found.values()) > 0
    assert done == Filled(len(log), {**planned.added, "silver": 0}, planned.kept), "silver was written before the cut"


def killed_backfills(project: Project) -> None:
    command = [sys.executable, str(Path(__file__).with_name("declarative_driver.py")), str(project.folder)]
    for point in (["silver"], ["silver", "after"], ["windows"]):
        done = subprocess.run([*command, *point], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr


def written(tmp_path: Path, more: str = "") -> Project:
    (tmp_path / "pipeline.toml").write_text(f'name = "shop"\nkind = "sdp"\n[source]\ntopics = ["orders"]\n{more}')
    return open_project(tmp_path)


def test_a_replay_puts_flows_aside_and_leaves_bronze(tmp_path: Path) -> None:
    project = written(tmp_path)
    ends = {"orders": {0: 7, 1: 3}}
    with pytest.raises(BrokerError, match="nothing to replay yet"):
        replay.make_plan(project, "earliest", ends)
    for flow in ("bronze", "silver", "dead_letters"):
        (project.flow(flow) / flow / "0" / "commits").mkdir(parents=True)
    for table in ("bronze", "silver"):
        project.table(table).mkdir(parents=True)
    with pytest.raises(BrokerError, match="from earliest, an offset or a time"):
        replay.make_plan(project, "bronze", ends)
    plan = replay.make_plan(project, "5", ends)
    assert plan.sentences(project) == [
        "generation 2 of dead_letters, silver, from 5",
        f"table silver is rebuilt ({project.table('silver')})",
        "topic shop.dead-letters gets the records again",
    ]
    generation = replay.begin(project, plan)
    assert project.flows() == ["bronze"]
    assert project.table("bronze").is_dir()
    assert not project.table("silver").exists()
    assert generation.starts == {"records": {"startingOffsets": '{"orders":{"0":5,"1":3}}'}}
    assert replay.settle(project) == Ledger(project.storage).generation() == generation
    assert [(each.stage, each.lag) for each in status(project, ends).stages] == [("bronze", 10)]


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    project = written(tmp_path, '[[expectations]]\nstage = "gold"\nname = "n"\ncheck = "true"\n')
    with pytest.raises(BrokerError, match="the pipeline has not run yet"):
        check_backfill(project)
    check_dry_run(project)

    def declared() -> Declared:
        return Declared(project, Generation(), lambda *_: None, is_batch=True)

    found = declared()
    with pytest.raises(BrokerError, match=r"unknown flow 'gold'; the flows are bronze"), declaring(found):
        found.table("bronze")(lambda rows: rows)
    project = written(tmp_path, '[tables]\npartition_by = { slver = ["day"] }\n')
    found = declared()
    said = r"\[tables.partition_by\] slver: unknown table; the tables are bronze"
    with pytest.raises(BrokerError, match=said), declaring(found):
        found.table("bronze")(lambda rows: rows)
    with pytest.raises(BrokerError, match="'bronze' is declared twice"):
        found.view("bronze")(lambda rows: rows)
    with pytest.raises(BrokerError, match="silver reads 'bronze', which is not a view above it; the views are records"):
        found.table("silver", reads="bronze")(lambda rows: rows)
    with pytest.raises(
        BrokerError, match=r"\[silver\]: a pipeline of kind = \"sdp\" defines its layers in definitions/"
    ):
        written(tmp_path, '[silver]\nschema = "a int"\n')
    with pytest.raises(BrokerError, match="target_file_bytes = 0: must be at least 1"):
        written(tmp_path, "[tables]\ntarget_file_bytes = 0\n")
