"""`--watch`: the same question again and again, over what was there before on a terminal, a line of JSON each in a pipe."""

import json
import os
import pty
import signal
import subprocess
import termios
import time
from itertools import count

import pytest
from tests.cli.braid import PROGRAM, SECONDS_MAX, Braid, check, fresh

from braidlog.testing.server import ServerProcess


@pytest.fixture
def braid(braid_server_shared: ServerProcess) -> Braid:
    return Braid(braid_server_shared)


def test_into_a_pipe_each_is_a_line(braid: Braid) -> None:
    """What changes meanwhile is in a later line; Ctrl-C ends it."""
    topic = fresh("watched")
    braid.ok("topic", "create", topic)
    with braid.start("topic", "describe", topic, "--watch", "--interval", "0.1", "-o", "json") as watching:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        check("topic-describe", first)
        assert first[0]["partitions"][0]["latest"] == 0
        braid.ok("produce", topic, stdin="a\nb\n")
        latest = (json.loads(line)[0]["partitions"][0]["latest"] for line in watching.stdout)
        assert any(number == 2 for number in latest)
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate(timeout=SECONDS_MAX)
        assert (watching.returncode, said) == (130, b"braid: interrupted\n")


@pytest.mark.parametrize(
    "args",
    [
        ["group", "list"],
        ["topic", "list"],
        ["cluster", "status"],
        ["cluster", "nodes"],
        ["cluster", "partitions"],
        ["node"],
        ["txn", "list"],
        ["table", "status"],
    ],
    ids=" ".join,
)
def test_what_can_be_watched(braid: Braid, args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice, in this process: the third pause is Ctrl-C."""
    rounds = count()

    def pause(_: float) -> None:
        if next(rounds) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("braidlog.cli.terminal.watch.wait", pause)
    result = braid(*args, "--watch", "-o", "json")
    assert result.exit_code == 130, result.output
    assert len([json.loads(line) for line in result.stdout.splitlines()]) == 2


def test_on_a_terminal_it_is_drawn_over(braid: Braid) -> None:
    """The screen is cleared once; then lines are written over lines, as many as fit."""
    group, lines = fresh("seen"), 12
    for number in range(20):
        braid.ok("topic", "create", f"{group}-{number}")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (lines, 80))
    environment = {**os.environ, **braid.environment, "TERM": "xterm"}
    environment.pop("LINES", None)
    process = subprocess.Popen(
        [*PROGRAM, "topic", "list", "--watch", "--interval", "0.1"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + SECONDS_MAX
    while seen.count(b"\x1b[H") < 3:
        assert time.monotonic() < deadline, seen
        seen += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS_MAX) == 130
    os.close(ours)
    assert seen.count(b"\x1b[2J") == 1
    _, first, *_ = seen.decode().split("\x1b[H")
    assert first.count("\x1b[K\r\n") == lines - 1
    assert first.startswith("every 0.1 s, until Ctrl-C: ")
    assert "lines more\x1b[K\r\n\x1b[J" in first
    assert "next:" not in seen.decode()
