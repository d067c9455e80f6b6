"""A node under a service manager: a socket stands for systemd, which is not the first process here."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidlog.server.process.service_manager import ServiceManager

SECONDS_MAX = 60.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.settimeout(SECONDS_MAX)
        yield found


def test_a_node_says_when_it_is_ready_that_it_lives_and_that_it_stops(manager: socket.socket, tmp_path: Path) -> None:
    environment = {**os.environ, "NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "300000"}
    command = [sys.executable, "-m", "braidlog.cli", "serve", "--free-ports", "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as node:
        try:
            told = manager.recv(4096).decode().split("\n")
            assert told[0] == "READY=1"
            assert f"MAINPID={node.pid}" in told
            assert [manager.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            node.send_signal(signal.SIGTERM)
            while (word := manager.recv(4096)) == b"WATCHDOG=1":
                pass
            assert word == b"STOPPING=1"
            assert node.wait(SECONDS_MAX) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                node.kill()


def test_who_was_not_asked_says_nothing(manager: socket.socket) -> None:
    ServiceManager({}).notify("READY=1")
    other = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    assert ServiceManager(other).beat_seconds is None
    for period in ("0", "soon", ""):
        assert ServiceManager({**other, "WATCHDOG_PID": "", "WATCHDOG_USEC": period}).beat_seconds is None
    mine = {**other, "WATCHDOG_PID": str(os.getpid())}
    found = ServiceManager.of_this_process(mine)
    assert found.beat_seconds == pytest.approx(1 / 3)
    assert mine == {}
    found.notify("one", "two")
    assert manager.recv(100) == b"one\ntwo"


def test_a_manager_that_does_not_read_holds_nobody_up(manager: socket.socket) -> None:
    found = ServiceManager({"NOTIFY_SOCKET": manager.getsockname()})
    for _ in range(10_000):
        found.notify("WATCHDOG=1")
    manager.close()
    found.notify("WATCHDOG=1")


def test_a_name_in_no_file_system() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        name = f"braidlog-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.settimeout(SECONDS_MAX)
        found = ServiceManager({"NOTIFY_SOCKET": f"@{name}"})
        found.notify("READY=1")
        assert abstract.recv(100) == b"READY=1"
