"""The parts that need no Spark: versions, checkpoints, the ledger, plans, the page, the admin port."""

import io
import json
import signal
import threading
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog import BrokerError
from braidlog.cli.pipeline import options as pipeline_options
from braidlog.model.reporting.node_report import QueryProgress
from braidlog.spark.pipeline import ledger as ledger_module
from braidlog.spark.pipeline.alerts import alerts
from braidlog.spark.pipeline.checkpoints import Position, position
from braidlog.spark.pipeline.config import parse
from braidlog.spark.pipeline.layers.gaps import Finding, follow
from braidlog.spark.pipeline.ledger import BatchProgress, Generation, Ledger
from braidlog.spark.pipeline.page import Bin, Command, Dialect, page, plot
from braidlog.spark.pipeline.progress import StageProgress, lag
from braidlog.spark.pipeline.progress_reporting import AdminPort
from braidlog.spark.pipeline.project import Project
from braidlog.spark.pipeline.replay.replay import begin, make_plan, parse_time_ms, settle
from braidlog.spark.pipeline.stage_runner import StopRequest, cause
from braidlog.spark.pipeline.status import status

TEXT = """
name = "clicks"
[source]
topics = ["clicks"]
[silver]
schema = "user string, version long"
[silver.versions]
aggregate = "user"
version = "version"
[gold.windows]
[gold.state]
key = "user"
"""


@given(st.lists(st.sets(st.integers(1, 30), min_size=1), min_size=1, max_size=6))
def test_every_version_is_seen_or_told(batches: list[set[int]]) -> None:
    """Against a count by hand: what was never seen below the last is in gaps that nothing filled later."""
    expected: int | None = None
    missing: set[int] = set()
    seen: set[int] = set()
    again = 0
    for batch in batches:
        expected, found = follow(expected, sorted(batch))
        for each in found:
            span = set(range(each.from_version, each.to_version))
            if each.kind == "gap":
                assert not span & seen
                missing |= span
            else:
                missing -= span
                again += 1
        seen |= batch
    assert expected == max(seen) + 1
    first = min(batches[0])
    assert missing == {version for version in range(first, expected) if version not in seen}
    assert again == sum(
        sum(version < max(set().union(*batches[:number])) + 1 for version in batch)
        for number, batch in enumerate(batches)
        if number
    )


def test_versions_by_hand() -> None:
    assert follow(None, [5, 6]) == (7, [])
    assert follow(1, [3, 4, 8]) == (9, [Finding("gap", 1, 3, 0), Finding("gap", 5, 8, 2)])
    assert follow(7, [6, 7]) == (8, [Finding("again", 6, 7, 0)])


# -- checkpoints ---------------------------------------------------------------------------------------------------


def write_checkpoint(folder: Path, batch: int, offsets: dict[str, dict[str, int]], *, committed: bool = True) -> None:
    """As Spark writes them (org.apache.spark.sql.execution.streaming.OffsetSeq and CommitMetadata, version 1)."""
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "commits").mkdir(exist_ok=True)
    metadata = json.dumps({"batchWatermarkMs": batch * 1000, "batchTimestampMs": 1794736795636, "conf": {}})
    (folder / "offsets" / str(batch)).write_text(f"v1\n{metadata}\n{json.dumps(offsets)}")
    (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    if committed:
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_what_counts_is_what_was_committed(tmp_path: Path) -> None:
    assert position(tmp_path / "none") == Position()
    for batch in range(11):
        write_checkpoint(tmp_path, batch, {"t": {"0": batch * 10, "1": batch}, "t@id": {"0": 4711}})
    write_checkpoint(tmp_path, 11, {"t": {"0": 999, "1": 999}}, committed=False)
    assert position(tmp_path) == Position(10, {"t": {0: 100, 1: 10}}, 10_000)


# -- the ledger, plans and status ------------------------------------------------------------------------------------


def batch(stage: str, number: int, *, generation: int = 1, **more: object) -> BatchProgress:
    return BatchProgress("2026-11-15T10:00:00Z", stage, generation, number, 10, 5.0, 100, **more)  # type: ignore[arg-type]


def test_progress_is_kept_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PROGRESS_BYTES_MAX", 10_000)
    ledger = Ledger(tmp_path)
    for number in range(500):
        ledger.record(batch("silver", number))
    assert (tmp_path / "progress.jsonl").stat().st_size < 11_000
    kept = [each.batch for each in ledger.batches()]
    assert kept == list(range(kept[0], 500))
    with (tmp_path / "progress.jsonl").open("ab") as file:
        file.write(b'{"time":"2026')  # a crash in the middle of a line
    assert [each.batch for each in ledger.batches()] == kept


def test_one_at_a_time(tmp_path: Path) -> None:
    with Ledger(tmp_path).alone(), pytest.raises(BrokerError, match="is in use"), Ledger(tmp_path).alone():
        pass
    with Ledger(tmp_path).alone() as held:
        left = held.pop_all()
    with left, pytest.raises(BrokerError, match="is in use"), Ledger(tmp_path).alone():
        pass
    with Ledger(tmp_path).alone():
        pass
    (tmp_path / "generation.json").write_text("{")
    with pytest.raises(BrokerError, match="is damaged"):
        Ledger(tmp_path).generation()


def test_a_plan_says_what_it_rewrites(tmp_path: Path) -> None:
    project = Project(tmp_path, parse(TEXT))
    ends = {"clicks": {0: 50, 1: 7}, "clicks.silver": {0: 40, 1: 5}, "clicks.windows": {0: 3, 1: 0}}
    plan = make_plan(project, "10", ends)
    assert plan.stages == ("silver", "dead-letters", "silver-table", "gaps", "state", "windows", "windows-table")
    assert plan.tables == ("silver", "gaps", "windows")
    assert plan.starts["silver"] == {"startingOffsets": '{"clicks":{"0":10,"1":7}}'}
    assert plan.starts["gaps"] == {"startingOffsets": '{"clicks.silver":{"0":40,"1":5}}'}
    assert plan.starts["windows-table"] == {"startingOffsets": '{"clicks.windows":{"0":3,"1":0}}'}
    sentences = "\n".join(plan.sentences(project))
    assert "table silver is rebuilt" in sentences
    assert "topic clicks.windows gets the records again" in sentences
    assert make_plan(project, "2026-11-15T08:00:00Z", ends).starts["silver"]["startingTimestamp"] == "1794729600000"
    later = make_plan(project, "silver", ends)
    assert later.stages == ("silver-table", "gaps", "state", "windows", "windows-table")
    assert later.starts["state"] == {"startingOffsets": "earliest"}
    assert make_plan(project, "windows", ends).stages == ("windows-table",)
    with pytest.raises(BrokerError, match="bronze does not exist yet"):
        make_plan(project, "bronze", ends)
    write_checkpoint(project.checkpoint("bronze", 1), 0, {"clicks": {"0": 30, "1": 7}})
    assert make_plan(project, "bronze", ends).starts["silver"] == {"startingOffsets": '{"clicks":{"0":30,"1":7}}'}
    with pytest.raises(BrokerError, match="'yesterday' is neither an offset"):
        make_plan(project, "yesterday", ends)
    assert parse_time_ms("2026-11-15T08:00:00") == parse_time_ms("2026-11-15T09:00:00+01:00")

    # A replay that is cut off between its steps is finished by whoever comes next.
    for name in plan.tables:
        project.table(name).mkdir(parents=True)
    pending = Generation(2, dict.fromkeys(plan.stages, 2), plan.starts, plan.tables)
    Ledger(project.storage).begin(pending)
    project.replaced("silver", 2).parent.mkdir(parents=True)
    project.table("silver").rename(project.replaced("silver", 2))
    settled = settle(project)
    assert (settled.latest, settled.replacing, settled.of("silver"), settled.of("bronze")) == (2, (), 2, 1)
    assert not any(project.table(name).exists() for name in plan.tables)
    assert all(project.replaced(name, 2).exists() for name in plan.tables)
    third = begin(project, make_plan(project, "windows", ends))
    assert (third.latest, third.of("windows-table"), third.of("silver")) == (3, 3, 2)
    assert third.starts["windows-table"] == plan.starts["windows-table"]  # where generation 2 of its layer began


def test_status_counts_what_was_committed(tmp_path: Path) -> None:
    project = Project(tmp_path, parse(TEXT))
    ends = {"clicks": {0: 50, 1: 7}, "clicks.silver": {0: 40}}
    write_checkpoint(project.checkpoint("silver", 1), 3, {"clicks": {"0": 48, "1": 7}})
    ledger = Ledger(project.storage)
    ledger.record(batch("silver", 2, checked=10, violations={"positive": 2}))
    ledger.record(batch("silver", 3, checked=10, violations={"positive": 1}, late_rows=4))
    ledger.record(batch("silver", 9, generation=7))  # of another life
    found = {each.stage: each for each in status(project, ends).stages}
    silver = found["silver"]
    assert (silver.batch, silver.lag, silver.rows, silver.late_rows) == (3, 2, 20, 4)
    assert silver.violations == {"positive": 3}
    assert (found["bronze"].batch, found["bronze"].lag) == (-1, 57)
    assert found["gaps"].lag == 40
    assert (silver.written, silver.dead, found["bronze"].written) == (None, 0, 0), "older batches did not say"
    assert {each.lag for each in status(project, None).stages} == {None}


def test_limits_that_are_passed_are_told(tmp_path: Path) -> None:
    limits = '[alerts]\nlag_records = 50\nsilent = "10 minutes"\ndead_letters = 2\n'
    project = Project(tmp_path, parse(TEXT + limits))
    ends = {"clicks": {0: 50, 1: 7}, "clicks.silver": {0: 0}}
    read = {"bronze": {"0": 50, "1": 7}, "silver": {"0": 48, "1": 7}, "dead-letters": {"0": 50, "1": 7}}
    for stage, offsets in read.items():
        write_checkpoint(project.checkpoint(stage, 1), 3, {"clicks": offsets})
        Ledger(project.storage).record(batch(stage, 3, written=3))
    at_ms = round(datetime.fromisoformat(batch("silver", 3).time).timestamp() * 1000)
    assert alerts(project, status(project, ends), at_ms) == ["3 records are dead letters; dead_letters = 2"]
    assert alerts(project, status(project, {**ends, "clicks": {0: 101, 1: 7}}), at_ms + 600_001) == [
        "bronze is 51 records behind; lag_records = 50",
        f"bronze is behind and has done nothing since {batch('bronze', 3).time}; silent = '10 minutes'",
        "silver is 53 records behind; lag_records = 50",
        f"silver is behind and has done nothing since {batch('silver', 3).time}; silent = '10 minutes'",
        "dead-letters is 51 records behind; lag_records = 50",
        f"dead-letters is behind and has done nothing since {batch('dead-letters', 3).time}; silent = '10 minutes'",
        "3 records are dead letters; dead_letters = 2",
    ]
    assert alerts(project, status(project, None), at_ms + 600_001) == ["3 records are dead letters; dead_letters = 2"]


def test_dead_letters_are_those_that_were_written_and_not_what_was_read(tmp_path: Path) -> None:
    project = Project(tmp_path, parse(TEXT))
    ledger = Ledger(project.storage)
    for stage, written in (("bronze", 10), ("silver", 7), ("dead-letters", 3), ("dead-letters", 0), ("state", None)):
        ledger.record(batch(stage, 1, written=written))
    found = {each.stage: (each.rows, each.written, each.dead) for each in status(project, None).stages}
    assert found["bronze"] == (10, 10, 0)
    assert found["silver"] == (10, 7, 0)
    assert found["dead-letters"] == (20, 3, 3)
    assert found["state"] == (10, None, 0)


def test_lag_of_a_progress() -> None:
    source = {"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 9, "1": 3}}}
    assert lag({"sources": [source]}) == 7
    assert lag({"sources": [{"endOffset": "5", "latestOffset": "9"}]}) is None


def test_the_line_that_tells_why() -> None:
    raised = "x\nCaused by: a.B: [USER_RAISED_EXCEPTION] expectation a of b is broken by {} SQLSTATE: P0001\n\tat c"
    assert cause(raised) == "expectation a of b is broken by {}"
    python = "Job aborted\nTraceback (most recent call last):\n  File\nbraidlog.client.errors.ConnectError: nobody there\n\n\tat"
    assert cause(python) == "braidlog.client.errors.ConnectError: nobody there"
    assert cause("a\nCaused by: java.io.IOException: no space\n\tat x") == "java.io.IOException: no space"
    assert cause("") == "Spark gave no reason"


# -- the terminal --------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


HEARD = [
    StageProgress("silver", "running"),
    StageProgress("silver", "running", 3, 1200, 400.0, 7),
    StageProgress("bronze", "running", 1, 0, 0.0, None),
    StageProgress("silver", "stopped"),
]


def test_one_line_per_stage_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    with pipeline_options.progress() as show:
        for each in HEARD:
            show(each)
    last = terminal.getvalue().rpartition("\x1b[2K")[2] if "\x1b[2K" in terminal.getvalue() else terminal.getvalue()
    assert "silver          batch 3  1,200 rows  400/s  lag 7" in terminal.getvalue()
    assert "bronze          batch 1" in last


def test_plain_lines_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with pipeline_options.progress() as show:
        for each in HEARD:
            show(each)
    assert capsys.readouterr().err == "silver          batch 3  1,200 rows  400/s  lag 7\n"


# -- the page ------------------------------------------------------------------------------------------------------


def test_the_page_escapes_and_loads_nothing() -> None:
    nasty = '<script>alert(1)</script>"&'
    command = Command(nasty, 1234, 0.5, 10, 20, None, 1.5, 2.0, 1, 0)
    bins = (Bin(0, 1.0, 0.5, 1.5), Bin(1, 2.0, 0.5, 3.0), Bin(3, 4.0, None, None))
    made = page(nasty, "then", "now", [Dialect(nasty, (command,), bins)], 4)
    assert "<script" not in made
    assert "&lt;script&gt;" in made
    assert "1,234" in made
    assert "http://" not in made
    assert "https://" not in made
    assert "prefers-color-scheme: dark" in made
    assert 'points="80.0,80.0 240.0,0.0"' in made  # p99: 1.5 and 3 of 3 ms, in the first two of four places


def test_lines_are_broken_where_nothing_was() -> None:
    made = plot("t", "ms", 4, {"a": [1.0, 2.0, None, 4.0]})
    assert made.lines[0].pieces == ("80.0,120.0 240.0,80.0",)
    assert made.lines[0].dots == ((560.0, 0.0),)
    assert made.top == "4 ms"
    assert plot("t", "ms", 2, {"a": [None, None]}).lines[0].pieces == ()


# -- the admin port ------------------------------------------------------------------------------------------------


class Answering(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Listening)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.heard.append((self.path, self.headers.get("Authorization"), json.loads(body)))
        self.send_response(server.answer)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Listening(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.heard: list[tuple[str, str | None, dict[str, object]]] = []
        self.answer = 204


def test_progress_reaches_the_admin_port(caplog: pytest.LogCaptureFixture) -> None:
    with Listening() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = AdminPort(f"http://127.0.0.1:{server.server_port}/", "secret")
            report = QueryProgress("q", "r", "clicks.silver", "clicks", "running", progress={"batchId": 3})
            report = msgspec.structs.replace(report, tables={"silver": "/srv/clicks/storage/tables/silver"})
            port(report)
            port(msgspec.structs.replace(report, state="failed", error="no", progress=None))
            port.close()
            assert server.heard == [
                (
                    "/api/spark/progress",
                    "Bearer secret",
                    {
                        "query": "q",
                        "run": "r",
                        "name": "clicks.silver",
                        "pipeline": "clicks",
                        "state": state,
                        "error": error,
                        "progress": progress,
                        "tables": {"silver": "/srv/clicks/storage/tables/silver"},
                    },
                )
                for state, error, progress in (("running", None, {"batchId": 3}), ("failed", "no", None))
            ]
            server.answer = 401
            refused = AdminPort(f"http://127.0.0.1:{server.server_port}")
            for _ in range(3):
                refused(report)
            refused.close()
        finally:
            server.shutdown()
            thread.join()
        gone = server.server_port
    unreached = AdminPort(f"http://127.0.0.1:{gone}")
    for _ in range(3):
        unreached(report)
    unreached.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said  # once each, not every time
    assert "it answered 401" in said[0]
    assert "refused" in said[1]
    with pytest.raises(ValueError, match="not an http"):
        AdminPort("file:///etc/passwd")


def test_a_signal_handler_can_ask_its_own_waiting_thread_to_stop() -> None:
    stop = StopRequest()
    assert not stop.wait(0)
    before = signal.signal(signal.SIGALRM, lambda *_: stop.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert stop.wait(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    stop.set()
    assert stop.is_set()
    assert stop.wait(0)
