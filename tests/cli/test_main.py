"""The command itself: what it says of itself, what it imports, which exit code is which."""

import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from braidlog import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.cli import main
from braidlog.codec import COMPILED_MODULES, is_compiled

COMMAND_PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/cli.md").read_text(encoding="utf-8")


def _commands(group: click.Group, path: str = "") -> list[str]:
    """Every command and group, so that none is missing on the page of commands."""
    context = click.Context(group)
    found = [path]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = f"{path} {name}".strip()
        found += _commands(command, inner) if isinstance(command, click.Group) else [inner]
    return found


COMMANDS = _commands(main)
HELP_TO_CLICK_RATIO_MAX = 4.0


def help_of(command: str) -> str:
    """What `braid COMMAND --help` prints."""
    result = CliRunner().invoke(
        main, [*command.split(), "--help"], prog_name="braid", terminal_width=100, max_content_width=100
    )
    assert result.exit_code == 0
    return result.output


def run(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "braidlog.cli", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command or "braid")
def test_help_is_on_the_page_of_commands(command: str) -> None:
    """The page is kept as text, so that its reviewer sees every change of a help. `make reference` writes it."""
    assert f"# {f'braid {command}'.strip()}\n\n```text\n{help_of(command)}```\n" in COMMAND_PAGE, "run: make reference"


def test_the_page_of_commands_has_no_other_command() -> None:
    headings = re.findall(r"^##+ (braid\b.*)$", COMMAND_PAGE, re.MULTILINE)
    assert headings == [f"braid {command}".strip() for command in COMMANDS]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command or "braid")
def test_each_example_of_a_help_is_one_line_that_a_shell_reads(command: str) -> None:
    for line in help_of(command).splitlines():
        if line.startswith("    braid "):
            shlex.split(line.strip().split("   ")[0])  # a ValueError if a quote is left open


def test_every_command_is_in_one_section_of_the_help_and_no_section_is_long() -> None:
    named = [name for commands in main.sections.values() for name in commands]
    assert named == main.list_commands(click.Context(main))
    assert max(map(len, main.sections.values())) <= 8


def test_version_names_kernel_and_python() -> None:
    done = run("--version")
    kernel = "compiled" if is_compiled() else "pure Python"
    python = re.escape(".".join(map(str, sys.version_info[:3])))
    assert re.fullmatch(rf"braidlog \d+\.\d+\.\d+ \(kernel {kernel}, Python {python}\)\n", done.stdout)
    assert done.returncode == 0


@pytest.mark.parametrize("name", COMPILED_MODULES)
def test_version_says_pure_python_if_one_module_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in COMPILED_MODULES:
        monkeypatch.setattr(f"braidlog.codec.{each}.COMPILED", each != name)
    assert "kernel pure Python" in CliRunner().invoke(main, ["--version"]).output
    monkeypatch.setattr(f"braidlog.codec.{name}.COMPILED", True)
    assert "kernel compiled" in CliRunner().invoke(main, ["--version"]).output


def test_help_imports_click_and_nothing_of_weight() -> None:
    script = (
        "import sys; sys.argv = ['braid', '--help']\n"
        "from braidlog.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
        "print([name for name in sys.modules if name.startswith('braidlog')], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for heavy in ("rich", "msgspec", "cramjam", "asyncio", "pyarrow", "numpy"):
        assert f"'{heavy}'" not in done.stderr
    assert "['braidlog', 'braidlog.cli']" in done.stderr


def test_help_costs_little_more_than_importing_click() -> None:
    """A ratio of processor time, not a limit in seconds: it holds on a slow and on a busy machine."""
    program = [sys.executable, "-m", "braidlog.cli", "--help"]
    bare = [sys.executable, "-c", "import click"]
    cost = min(_cpu_seconds(program) for _ in range(5)) / min(_cpu_seconds(bare) for _ in range(5))
    assert cost < HELP_TO_CLICK_RATIO_MAX


def _cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerError(Reason.TOPIC_NOT_FOUND, "no such thing"), 3),
        (StorageFault("no such thing"), 4),
        (ProtocolError("no such thing"), 4),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_become_one_line_and_a_code(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("braidlog.cli.log.list.list_topics", fail)
    result = CliRunner().invoke(main, ["log", "list", "data"])
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr == ("braid: interrupted\n" if code == 130 else "braid: no such thing\n")


def test_our_own_mistakes_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("we are wrong")

    monkeypatch.setattr("braidlog.cli.log.list.list_topics", fail)
    result = CliRunner().invoke(main, ["log", "list", "data"])
    assert isinstance(result.exception, AssertionError)


@pytest.mark.parametrize(
    "args",
    [
        ["logs"],
        ["log", "check"],
        ["log", "list"],
        ["log", "list", "data", "-o", "xml"],
        ["log", "dump", "data"],
        ["log", "dump", "data", "topic", "--from", "-1"],
        ["log", "dump", "data", "topic", "-n", "0"],
        ["log", "verify", "data", "topic", "more"],
        ["log", "repair", "--maybe", "data"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_two(args: list[str]) -> None:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


@pytest.mark.parametrize("command", [["list"], ["dump"], ["verify"], ["repair", "--yes"]], ids=lambda args: args[0])
def test_missing_and_foreign_folders_are_refused(tmp_path: Path, command: list[str]) -> None:
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "cat.jpg").write_bytes(b"cat")
    topic = ["topic"] if command == ["dump"] else []
    for folder, sentence in ((tmp_path / "nowhere", "does not exist"), (foreign, "is not a braidlog data folder")):
        done = run("log", *command, str(folder), *topic)
        assert done.returncode == 3
        assert done.stderr == f"braid: {folder} {sentence}\n"
    assert sorted(path.name for path in foreign.iterdir()) == ["cat.jpg"]
    assert not (tmp_path / "nowhere").exists()


def test_unreadable_folder_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    done = run("log", "list", str(tmp_path / "file"))
    assert done.returncode in (3, 4)
    assert done.stderr.startswith("braid: ")
    assert "Traceback" not in done.stderr


def test_a_package_that_is_not_there_is_named_with_what_to_install() -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None\n"  # as if it were not installed
        "from braidlog.cli import main\n"
        "for args in (['pipeline', 'run', '.'], ['spark', 'shell']):\n"
        "    try: main(args)\n"
        "    except SystemExit as end: print(end.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n3\n"
    assert done.stderr == "braid: pyspark is not installed: pip install 'braidlog[spark,lake]'\n" * 2
