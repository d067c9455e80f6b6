"""`braid log` as a person uses it: a real folder on a real disk, real damage, real exit codes."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner, Result

from braidlog import Compression, Log, NewRecord
from braidlog.cli import main
from braidlog.cli.terminal.output import PROGRESS_FROM_BYTES, size
from braidlog.model.clock import SystemClock
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.tools.dump import TopicListing
from braidlog.tools.findings import VerifyReport
from braidlog.tools.repair.folder import RepairPlan, RepairReport

SCHEMAS = Path(__file__).resolve().parents[3] / "docs" / "schemas"
GENERATED: dict[str, Any] = {
    "log-list": list[TopicListing],
    "log-verify": VerifyReport,
    "log-repair-plan": RepairPlan,
    "log-repair": RepairReport,
}


def braid(*args: str | Path, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, ["log", *map(str, args)], input=answer, prog_name="braid")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check(name: str, text: str) -> Any:
    value = json.loads(text)
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(value)
    return value


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    with Log(str(folder)) as log:
        clicks = log.create_topic("clicks", segment_bytes=4096, index_interval_bytes=256, flush="os")
        for number in range(30):
            record = NewRecord(f"value {number} ".encode() * 40, key=b"k", headers=(("h", b"\xff"), ("n", None)))
            clicks.append_many([record], compression=Compression.NONE)
        log.create_topic("views", partitions=2)
    return folder


def part(data: Path, suffix: str, number: int) -> Path:
    return sorted((data / "topics" / "00000001" / "0000").glob(f"*{suffix}"))[number]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def zero(path: Path, start: int, end: int) -> None:
    content = bytearray(path.read_bytes())
    content[start:end] = bytes(end - start)
    path.write_bytes(content)


def drop_checkpoints(data: Path) -> None:
    for name in ("state.a", "state.b"):
        part(data, name, 0).unlink()


HURTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "data": (lambda data: flip(part(data, ".log", 1), 400), "[batch]"),
    "head": (lambda data: flip(part(data, ".log", 1), 20), "[segment-head]"),
    "mark": (lambda data: flip(part(data, ".log", 1), 70), "[durable-mark]"),
    "cut": (lambda data: cut(part(data, ".log", -1), 10), "[batch]"),
    "zeros": (lambda data: zero(part(data, ".log", 2), 128, 640), "[batch]"),
    "segment": (lambda data: part(data, ".log", 2).unlink(), "[segment-missing]"),
    "index": (lambda data: part(data, ".idx", 1).unlink(), "[index]"),
    "snapshot": (lambda data: flip(part(data, ".state", 1), 50), "[snapshot]"),
    "checkpoint": (lambda data: flip(part(data, "state.a", 0), 50), "[checkpoint]"),
    "checkpoints": (drop_checkpoints, "[checkpoint]"),
    "topic": (lambda data: flip(data / "topics" / "00000001" / "topic.a", 40), "[topic]"),
    "folder": (lambda data: (data / "folder.b").unlink(), "[folder]"),
}


@pytest.mark.parametrize("name", HURTS)
def test_from_damage_to_sound(data: Path, name: str) -> None:
    hurt, word = HURTS[name]
    with Log(str(data)) as log:
        truth = {record.offset: record for record in log.topic("clicks")}
    assert braid("verify", data).exit_code == 0
    hurt(data)
    damaged = tree(data)

    verified = braid("verify", data)
    assert verified.exit_code == 1
    assert word in verified.output
    assert f"braid log repair --dry-run {data}" in verified.output
    reported = check("log-verify", braid("verify", data, "-o", "json").output)
    assert not reported["sound"]

    dry = braid("repair", "--dry-run", data)
    assert dry.exit_code == 0
    assert "Nothing changed" in dry.output
    plan = check("log-repair-plan", braid("repair", "--dry-run", "-o", "json", data).output)
    assert plan["steps"]
    assert tree(data) == damaged

    done = braid("repair", "--yes", data)
    assert done.exit_code == 0, done.output
    assert "the folder is intact and accepts writes" in done.output
    assert braid("verify", data).exit_code == 0
    with Log(str(data)) as log:
        kept = {record.offset: record for record in log.topic("clicks")}
        assert all(kept[offset] == truth[offset] for offset in kept)
        assert len(truth) - len(kept) == plan["offsets_lost"]
        assert log.topic("clicks").append(b"new") == max(truth) + 1


def test_repair_reports_in_json(data: Path) -> None:
    flip(part(data, ".log", 1), 400)
    report = check("log-repair", braid("repair", "--yes", "-o", "json", data).output)
    assert report["verified"]["sound"]
    assert [path.name for path in (data / "quarantine").glob("*.bin")] == report["quarantined"]


def test_repair_asks_first(data: Path) -> None:
    flip(part(data, ".log", 1), 400)
    before = tree(data)
    refused = braid("repair", data, answer="n\n")
    assert refused.exit_code == 1
    assert "Nothing changed." in refused.stderr
    unanswered = braid("repair", data, answer="")
    assert unanswered.exit_code == 2
    assert "not a terminal: pass --yes to confirm" in unanswered.stderr
    assert tree(data) == before
    assert braid("repair", data, answer="y\n").exit_code == 0
    assert braid("verify", data).exit_code == 0


def test_repair_of_a_sound_folder_changes_nothing(data: Path) -> None:
    before = tree(data)
    done = braid("repair", data)
    assert (done.exit_code, done.output) == (0, "Nothing to repair.\n")
    assert tree(data) == before


def test_repair_of_a_folder_in_use_is_refused(data: Path) -> None:
    flip(part(data, ".log", 1), 400)
    with Log(str(data)):
        done = braid("repair", "--yes", data)
    assert done.exit_code == 3
    assert "in use" in done.stderr


def test_repair_of_a_clusters_folder_is_left_to_its_node(data: Path) -> None:
    """A repaired copy is not what the other copies are, and nobody would know."""
    folder = DataFolder(OsDisk(), str(data), SystemClock())
    folder.join_cluster("c1")
    folder.release()
    flip(part(data, ".log", 1), 400)
    done = braid("repair", "--yes", data)
    assert done.exit_code == 3
    assert "belongs to cluster c1" in done.stderr
    assert "--only-copy" in done.stderr
    assert braid("repair", "--dry-run", data).exit_code == 0
    assert braid("repair", "--yes", "--only-copy", data).exit_code == 0


def test_repair_says_what_is_beyond_it(data: Path) -> None:
    for path in (data / "topics" / "00000002" / "0001").iterdir():
        path.unlink()
    dry = braid("repair", "--dry-run", data)
    assert dry.exit_code == 1
    assert "beyond repair" in dry.output


def test_repair_of_one_topic_leaves_the_others(data: Path) -> None:
    flip(part(data, ".log", 1), 400)
    assert braid("repair", data, "views").output == "Nothing to repair.\n"
    assert braid("verify", data, "views").exit_code == 0
    assert braid("verify", data).exit_code == 1


def test_verify_of_a_sound_folder(data: Path) -> None:
    before = tree(data)
    done = braid("verify", data)
    assert done.exit_code == 0
    assert done.output.splitlines()[0].split() == [
        "TOPIC", "PARTITION", "OFFSETS", "SEGMENTS", "BATCHES", "RECORDS", "READ", "VERDICT",
    ]  # fmt: skip
    assert "clicks  0          [0, 30)" in done.output
    assert "Intact: " in done.output
    assert check("log-verify", braid("verify", data, "-o", "json").output)["sound"]
    assert tree(data) == before


def test_tools_look_at_a_folder_in_use(data: Path) -> None:
    with Log(str(data)) as log:
        log.topic("clicks").append(b"open")
        for command, *rest in (["list"], ["verify"], ["dump", "clicks"]):
            assert braid(command, data, *rest).exit_code == 0


def test_zeros_ahead_of_the_end_are_nothing_to_tell(data: Path) -> None:
    """Of a folder in use, and so of one whose node was killed: what is written over later is neither torn nor damaged."""
    with Log(str(data)) as log:
        topic = log.topic("views")
        for _ in range(8):
            topic.append(b"acknowledged", partition=0)
        segment = topic.partition(0).segments[0]
        assert Path(segment.path).stat().st_size > segment.size
        verified = check("log-verify", braid("verify", data, "views", "-o", "json").output)
        assert (verified["sound"], [each["findings"] for each in verified["partitions"]]) == (True, [[], []])
        assert [line["offset"] for line in lines(data, "views")] == list(range(8))
        assert len(lines(data, "views", "--batches")) == 8


def test_unknown_topic_and_partition_are_refused(data: Path) -> None:
    for command in ("dump", "verify", "repair"):
        done = braid(command, data, "clack")
        assert done.exit_code == 3
        assert done.stderr == "braid: topic 'clack' does not exist; topics: clicks, views\n"
    done = braid("dump", data, "views", "-p", "2")
    assert (done.exit_code, done.stderr) == (3, "braid: topic 'views' has partitions 0 to 1, not 2\n")


def test_list(data: Path) -> None:
    table = braid("list", data).output.splitlines()
    assert table[0].split() == ["TOPIC", "PARTITION", "OFFSETS", "SEGMENTS", "SIZE"]
    assert [line.split()[0] for line in table[1:]] == ["clicks", "views", "views"]
    assert braid("list", data, "-o", "name").output == "clicks\nviews\n"
    listed = check("log-list", braid("list", data, "-o", "json").output)
    assert [(p["start_offset"], p["end_offset"]) for p in listed[0]["partitions"]] == [(0, 30)]
    assert listed[0]["settings"]["segment_bytes"] == 4096


def test_list_of_an_empty_folder(tmp_path: Path) -> None:
    Log(str(tmp_path / "new")).close()
    assert braid("list", tmp_path / "new").output == f"{tmp_path / 'new'} holds no topics.\n"


def lines(*args: str | Path) -> list[Any]:
    result = braid("dump", *args, "-o", "json")
    return [check("log-dump", line) for line in result.output.splitlines()]


def test_dump_records(data: Path) -> None:
    found = lines(data, "clicks", "--from", "10", "--to", "13")
    assert [line["offset"] for line in found] == [10, 11, 12]
    assert found[0]["value"] == "value 10 " * 40
    assert found[0]["headers"] == [{"name": "h", "value": {"base64": "/w=="}}, {"name": "n", "value": None}]
    for line in found:
        check("record", json.dumps(line))
    assert len(lines(data, "clicks", "-n", "4")) == 4
    text = braid("dump", data, "clicks", "--from", "29").output
    assert text.startswith("29  20")
    assert "key=k  h:\\xff  n:null  value 29 value 29" in text


@pytest.mark.parametrize(("values", "key"), [("text", "k"), ("hex", "6b"), ("base64", "aw==")])
def test_dump_values(data: Path, values: str, key: str) -> None:
    assert lines(data, "clicks", "-n", "1", "--values", values)[0]["key"] == key


def test_dump_no_values(data: Path) -> None:
    assert set(lines(data, "clicks", "-n", "1", "--values", "none")[0]) == {
        "topic",
        "partition",
        "offset",
        "timestamp_ms",
    }
    assert len(braid("dump", data, "clicks", "-n", "1", "--values", "none").output.split()) == 2


def test_dump_batches_index_and_state(data: Path) -> None:
    batches = lines(data, "clicks", "--batches")
    assert [line["first_offset"] for line in batches] == list(range(30))
    assert {line["compression"] for line in batches} == {"none"}
    assert "epoch=0 codec=none" in braid("dump", data, "clicks", "--batches", "-n", "1").output
    entries = lines(data, "clicks", "--index")
    assert any(line["seal"] for line in entries)
    assert "entry offset=0 position=128" in braid("dump", data, "clicks", "--index", "-n", "1").output
    state = lines(data, "clicks", "--state")
    assert state[0]["image"]["end_offset"] == 30
    assert "offsets=[0, 30)" in braid("dump", data, "clicks", "--state", "-n", "1").output


def test_dump_goes_on_behind_damage(data: Path) -> None:
    flip(part(data, ".log", 1), 400)
    before = tree(data)
    result = braid("dump", data, "clicks")
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 30, "29 records and a line of damage"
    [damage] = [line["damage"] for line in lines(data, "clicks") if "damage" in line]
    assert damage["next_offset"] - damage["first_offset"] == 1
    assert tree(data) == before


def test_dump_into_a_closed_pipe_is_quiet(data: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m braidlog.cli log dump {data} clicks | head -1",
        shell=True, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_is_for_terminals(data: Path, environment: dict[str, str], coloured: bool) -> None:
    flip(part(data, ".log", 1), 400)
    shown = on_a_terminal(["log", "verify", str(data)], environment)
    assert (b"\x1b[31m" in shown) is coloured
    assert b"segment" in shown.lower()
    piped = subprocess.run(
        [sys.executable, "-m", "braidlog.cli", "log", "verify", data], capture_output=True, check=False
    )
    assert b"\x1b" not in piped.stdout


def test_progress_is_for_terminals_and_many_bytes(data: Path) -> None:
    with Log(str(data)) as log:
        topic = log.create_topic("large", flush="os")
        for _ in range(PROGRESS_FROM_BYTES // (4 * 1024 * 1024)):
            topic.append(b"x" * 4 * 1024 * 1024)
    shown = on_a_terminal(["log", "verify", str(data)], {})
    assert b"verify" in shown
    assert b"\x1b[?25l" in shown, "a bar hides the cursor"
    piped = subprocess.run(
        [sys.executable, "-m", "braidlog.cli", "log", "verify", data], capture_output=True, check=True
    )
    assert piped.stderr == b""


def on_a_terminal(args: list[str], environment: dict[str, str]) -> bytes:
    ours, theirs = pty.openpty()
    environment = (
        {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm"} | environment
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "braidlog.cli", *args], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other side of a terminal was closed
            break
        if not chunk:
            break
        shown += chunk
    process.wait(timeout=30)
    os.close(ours)
    return shown


@pytest.mark.parametrize("name", GENERATED)
def test_schemas_are_those_of_the_structs(name: str) -> None:
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(GENERATED[name])}
    path = SCHEMAS / f"{name}.json"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(json.dumps(made, indent=2) + "\n")
    assert json.loads(path.read_text()) == made


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (25_824, "25.8 kB"), (3_400_000_000, "3.4 GB"), (10**13, "10.0 TB")],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


# -- accept-loss ---------------------------------------------------------------------------------------------


def test_a_loss_is_accepted_once_and_only_if_there_is_one(data: Path) -> None:
    with Log(str(data)) as log:
        log.folder.create_topic("__coordinator_state", 1, log.topic("clicks").settings)
        log.folder.remember_internal("__coordinator_state")
    assert (
        "'__coordinator_state' exists: nothing changed"
        in braid("accept-loss", data, "__coordinator_state", "--yes").output
    )
    with Log(str(data)) as log:
        log.folder.delete_topic("__coordinator_state")
    before = tree(data)
    refused = braid("accept-loss", data, "__coordinator_state")
    assert (refused.exit_code, tree(data)) == (2, before)
    assert "not a terminal: pass --yes to confirm" in refused.output
    assert "creates an empty '__coordinator_state'" in braid("accept-loss", data, "__coordinator_state", "--yes").output
    with Log(str(data)) as log:
        assert log.folder.identity.internal_topics == ()
