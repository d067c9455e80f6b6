"""`braid dev --nodes`: which nodes are planned, what is refused before any is started, and three real ones from start to end."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.braid import PROGRAM, SECONDS_MAX
from tests.waiting import until

from braidlog.cli import main
from braidlog.cli.node.local_cluster import plan_nodes
from braidlog.server.config import load_config


def test_ports_move_on_and_folders_are_apart() -> None:
    plans = plan_nodes(load_config(None, {}, {"data_dir": "d", "listeners.flux.port": 0}), 3)
    assert [plan.folder for plan in plans] == ["d/node-1", "d/node-2", "d/node-3"]
    for name, first in (("listeners.kafka.port", 9092), ("cluster.peer_port", 2380), ("cluster.client_port", 2379)):
        assert [plan.settings[name] for plan in plans] == [first, first + 100, first + 200]
    peers = "1=http://127.0.0.1:2380,2=http://127.0.0.1:2480,3=http://127.0.0.1:2580"
    for plan in plans:
        assert plan.settings["cluster.initial_cluster"] == peers
        assert plan.settings["listeners.flux.port"] == 0
        assert plan.settings["node"] == plan.number
        flags = plan.command()[plan.command().index("--data-dir") + 2 :]
        loaded = load_config(None, {}, dict(pair.split("=", 1) for pair in flags[1::2]))
        member = loaded.config.cluster.member(loaded.config.node)
        assert (member.name, member.initial_cluster, member.election_ms) == (str(plan.number), peers, 300)
    used = [value for plan in plans for name, value in plan.settings.items() if name.endswith("port") and value]
    assert len(used) == len(set(used))


def test_one_console_shows_all_unless_consoles_are_asked_for() -> None:
    def consoles(**settings: object) -> list[bool]:
        plans = plan_nodes(load_config(None, {}, settings), 3)
        return [plan.settings.get("admin.enabled") != "false" for plan in plans]

    assert consoles() == [True, False, False]
    assert consoles(**{"admin.port": 9000}) == [True, False, False]
    assert consoles(**{"admin.enabled": True}) == [True, True, True]


def test_an_etcd_that_is_there_is_used() -> None:
    plans = plan_nodes(load_config(None, {}, {"cluster.etcd": "http://127.0.0.1:5"}), 3)
    assert {plan.settings["cluster.etcd"] for plan in plans} == {"http://127.0.0.1:5"}
    assert all("cluster.initial_cluster" not in plan.settings for plan in plans)


def test_without_an_etcd_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("braidlog.server.etcd.etcd_process.PACKAGE", "no_such_package")
    result = CliRunner().invoke(main, ["dev", "--nodes", "3", "--data-dir", str(tmp_path / "d")])
    assert result.exit_code == 3
    assert "no etcd found; install one" in result.stderr
    assert not (tmp_path / "d").exists()


def test_secrets_are_not_put_on_command_lines() -> None:
    with pytest.raises(SystemExit):
        plan_nodes(load_config(None, {}, {"admin.token": "0" * 64}), 3)


# -- real nodes ----------------------------------------------------------------------------------------------------

PORTS = ("client_port", "peer_port", "peers.gossip_port", "peers.replica_port")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def free_ports() -> list[int]:
    """Of each port one that is free for all three nodes."""
    found: list[int] = []
    base = 20_000 + os.getpid() % 5_000 * 2
    while len(found) < len(PORTS):
        base += 1
        if all(is_free(base + step) for step in (0, 100, 200)):
            found.append(base)
    return found


def processes_of(folder: Path) -> list[int]:
    """Those that name the folder in their command line."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and int(each.name) != os.getpid():
            try:
                words = (each / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in words:
                found.append(int(each.name))
    return found


def test_three_nodes_from_start_to_end(tmp_path: Path) -> None:
    """One is killed: it is told, the others go on; Ctrl-C ends all, the etcd of the killed one too."""
    doors = ["cursus", "flux", "kafka", "mayfly", "mlog", "rustlog"]
    ports = [f"cluster.{name}={port}" for name, port in zip(PORTS, free_ports(), strict=True)]
    settings = [*ports, *(f"listeners.{door}.port=0" for door in doors), "admin.enabled=false"]
    words = [word for each in settings for word in ("--set", each)]
    said = tmp_path / "said"
    with said.open("wb") as out:
        command = [*PROGRAM, "dev", "--nodes", "3", "--data-dir", str(tmp_path / "data"), *words]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        until(
            lambda: "Stop all with Ctrl-C." in said.read_text() or process.poll() is not None, "three nodes are ready"
        )
        assert process.poll() is None, said.read_text()
        line = next(line for line in said.read_text().splitlines() if "braid cluster status" in line)
        server = line.rpartition(" ")[2]
        status = subprocess.run(
            [*PROGRAM, "cluster", "status", "--server", server],
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS_MAX,
        )
        assert "3 of 3 nodes alive" in status.stdout
        second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
        assert second.returncode == 3
        assert f"nodes already run on {tmp_path / 'data'}: 3 nodes, {line.partition('with: ')[2]}" in second.stderr
        assert f"stop them with: kill {process.pid}" in second.stderr
        third = processes_of(tmp_path / "data" / "node-3")
        (victim,) = [pid for pid in third if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(victim, signal.SIGKILL)
        until(lambda: "node 3 ended with exit code -9" in said.read_text(), "its end is told")
        assert "2 nodes left" in said.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0, said.read_text()
        until(lambda: processes_of(tmp_path / "data") == [], "nothing is left behind")
    finally:
        if process.poll() is None:
            process.kill()
        for pid in processes_of(tmp_path / "data"):
            os.kill(pid, signal.SIGKILL)


CHILD = """\
import json, signal
print(json.dumps({"ports": {}, "admin": None}), flush=True)
signal.pause()
"""
PARENT = f"""\
import asyncio, sys
from braidlog.cli.node.local_cluster import NodePlan, RunningNode

class Plan(NodePlan, frozen=True):
    def command(self):
        return [sys.executable, "-c", {CHILD!r}]

async def main():
    node = RunningNode(Plan(1, "d", {{}}), print)
    assert await node.start()
    print(node._process.pid, flush=True)
    await node.ended()

asyncio.run(main())
"""


def test_a_node_ends_when_the_process_that_started_it_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not Path(f"/proc/{child}").exists(), "the node has ended")
