"""What a person at a terminal sees and a pipe does not: hints, progress, colours, questions; and what a terminal is spared."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.braid import PROGRAM, SECONDS_MAX, Braid, fresh

from braidlog.testing.server import ServerProcess


class Seen:
    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text.replace("\r\n", "\n")


def watch(braid: Braid, *args: str, typed: bytes | None = None, **environment: str) -> Seen:
    """Run it with a terminal for stdout and stderr; and for stdin, if something is typed."""
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *args],
        stdin=theirs if typed is not None else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, **braid.environment, "TERM": "xterm", **environment},
        close_fds=True,
    )
    os.close(theirs)
    if typed is not None:
        os.write(ours, typed)
    seen = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other side of a terminal was closed
            break
        if not chunk:
            break
        seen += chunk
    code = process.wait(timeout=SECONDS_MAX)
    os.close(ours)
    return Seen(code, seen.decode())


@pytest.fixture
def braid(braid_server_shared: ServerProcess) -> Braid:
    return Braid(braid_server_shared)


def test_the_next_useful_command(braid: Braid) -> None:
    topic = fresh("hint")
    seen = watch(braid, "topic", "create", topic)
    assert seen.text.splitlines() == [
        f"created {topic}",
        f"next: braid produce {topic}",
        f"next: braid topic describe {topic}",
    ]
    assert watch(braid, "topic", "describe", topic, "--quiet").text.count("next:") == 0
    assert f"next: braid tail {topic}" in watch(braid, "consume", topic).text
    absent = fresh("absent")
    assert "next: braid topic list" in watch(braid, "consume", absent).text
    for args in (["topic", "list"], ["topic", "describe", topic], ["config", "init", "-"], ["completion", "bash"]):
        assert "next:" not in braid.ok(*args)


def test_progress_and_counts(braid: Braid) -> None:
    topic = fresh("progress")
    seen = watch(braid, "demo", "clicks", "--topic", topic, "--count", "40", "--rate", "100")
    assert f"40 records acknowledged in {topic}" in seen.text
    assert "\r" in seen.text
    assert "\r" not in watch(braid, "demo", "clicks", "--topic", topic, "--count", "40", "--rate", "100", "-q").text
    file = f"/proc/{os.getpid()}/status"
    assert "records acknowledged" in watch(braid, "produce", topic, file).text
    missing = watch(braid, "produce", fresh("absent"), file)
    assert (missing.code, "next: braid topic create" in missing.text) == (3, True)


def test_colours_unless_nobody_wants_them(tmp_path: Path) -> None:
    braid = Braid()
    braid.environment |= {"BRAID_LISTENERS__KAFKA__PORT": "0"}
    args = ["doctor", "--data-dir", str(tmp_path)]
    assert "\x1b[32m" in watch(braid, *args).text
    assert "\x1b[" not in watch(braid, *args, NO_COLOR="1").text
    assert "\x1b[" not in braid(*args).stdout


def test_a_question_before_what_cannot_be_taken_back(braid: Braid) -> None:
    topic = fresh("asked")
    braid.ok("topic", "create", topic)
    refused = watch(braid, "topic", "delete", topic, typed=b"n\n")
    assert refused.code == 130
    assert f"Delete {topic} and all their records?" in refused.text
    assert topic in braid.ok("topic", "list", "-o", "name").split()
    assert watch(braid, "topic", "delete", topic, typed=b"y\n").code == 0
    assert topic not in braid.ok("topic", "list", "-o", "name").split()


def test_records_do_not_command_a_terminal(braid: Braid) -> None:
    """Somebody else wrote them: no cursor is moved, no window renamed. A pipe gets the bytes."""
    topic, nasty = fresh("nasty"), b"\x1b]0;gone\x07 \x1b[2J caf\xc3\xa9 \xff\tend"
    braid.ok("topic", "create", topic)
    braid.ok("produce", topic, stdin=nasty)
    assert watch(braid, "consume", topic, "-q").text == "\\x1b]0;gone\\x07 \\x1b[2J café \\xff\tend\n"
    with braid.start("consume", topic) as reader:
        assert reader.communicate(timeout=SECONDS_MAX)[0] == nasty + b"\n"


@pytest.mark.parametrize("group", ["", "topic", "group", "kv", "log", "wire", "demo", "generate"])
def test_help_of_a_group_imports_nothing_of_weight(group: str) -> None:
    """What was imported, not how long it took: that is the same on every machine."""
    script = (
        f"import sys; sys.argv = ['braid', *{group.split()!r}, '--help']\n"
        "from braidlog.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert not loaded & {"asyncio", "msgspec", "rich", "cramjam", "ssl", "pyarrow", "pyspark", "jinja2", "starlette"}
