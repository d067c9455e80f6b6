"""The console's process: it dies with its node, and comes back without it."""

import json
import os
import signal
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.console.asking import Feed, ask
from tests.console.waiting import until

import braidlog
from braidlog.testing.server import ServerProcess


def children(pid: int) -> list[int]:
    """Processes that this one has started and that live."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == pid and state != "Z":
                found.append(int(folder.name))
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_it_ends_with_its_node_however_that_ends(tmp_path: Path) -> None:
    for end in (ServerProcess.stop, ServerProcess.kill):
        with ServerProcess(tmp_path / "data", admin=True) as node:
            assert ask(f"{node.admin_url}/healthz").status == 200
            (child,) = children(node.pid)
            end(node)
            until(partial(is_gone, child))


def test_pages_that_listen_do_not_hold_up_a_stop(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", admin=True) as node:
        with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client:
            client.admin.create_topic("t")
            client.producer().send_and_wait("t", b"x")
        with (
            closing(Feed(f"{node.admin_url}/api/topics/t/tail")) as tail,
            closing(Feed(f"{node.admin_url}/api/rates")) as rates,
        ):
            assert next(tail)[0] == "record"
            assert next(rates)[0] == "rates"
            assert node.stop() == 0
            assert list(tail) == []
            assert list(rates) == []
        assert "Traceback" not in node.errors()
        assert "ERROR" not in node.errors()


def test_one_that_dies_is_started_again_on_the_same_port(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", admin=True) as node:
        assert ask(f"{node.admin_url}/healthz").status == 200
        (first,) = children(node.pid)
        os.kill(first, signal.SIGKILL)
        (second,) = until(lambda: [pid for pid in children(node.pid) if pid != first])
        assert second != first
        assert ask(f"{node.admin_url}/readyz").status == 200
        assert "the console has ended" in node.errors()


def test_without_one_there_is_none(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as node:
        assert node.admin_port is None
        assert children(node.pid) == []


def test_a_taken_port_is_said_and_the_node_does_not_start(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "one", admin=True) as node:
        second = ServerProcess(tmp_path / "two", "--set", f"admin.port={node.admin_port}", admin=True)
        with pytest.raises(RuntimeError, match="the admin port cannot listen"), second:
            pass


def test_it_gets_in_where_everybody_else_must_say_who_it_is(tmp_path: Path) -> None:
    settings = tmp_path / "braid.toml"
    settings.write_text(
        '[auth.tokens]\nalice = "' + "ab" * 32 + '"\n[[auth.rules]]\nprincipal = "alice"\noperations = ["read"]\n'
        "[listeners.kafka]\nenabled = false\n"
    )
    with ServerProcess(tmp_path / "data", "--config", str(settings), admin=True) as node:
        assert "kafka" not in node.ports
        answer = ask(f"{node.admin_url}/api/topics")
        assert answer.status == 200
        assert answer.json()["topics"] == []


def test_logs_can_be_json(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "log.format=json", admin=True) as node:
        with braidlog.connect(f"rustlog://127.0.0.1:{node.ports['rustlog']}") as client:
            client.admin.create_topic("t")
        node.stop()
        lines = [json.loads(line) for line in node.errors().splitlines()]
    assert lines
    for line in lines:
        assert {"time", "level", "logger", "message"} <= set(line)
    assert any("connections" in line["message"] and line["level"] == "info" for line in lines)
