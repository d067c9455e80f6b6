"""`braid node`: what a node says of itself, and what is said of one that says nothing."""

import os
from pathlib import Path
from typing import Final

from tests.cli.braid import Braid, as_, fresh, guarded

from braidlog.cli.cluster.inspect import NodeRow
from braidlog.cli.node.describe import facts_of
from braidlog.client.blocking import connect
from braidlog.testing.server import ServerProcess

RECORD_BYTES: Final = 100_000


def test_a_node_tells_of_itself(braid_server_shared: ServerProcess) -> None:
    braid, topic = Braid(braid_server_shared), fresh("told")
    braid.ok("topic", "create", topic)
    braid.ok("produce", topic, stdin="x" * RECORD_BYTES)
    (found,) = braid.json("node", schema="node")
    assert found["placement"]["node"] == 0
    assert found["placement"]["leads"] >= 1
    assert found["process"]["pid"] == braid_server_shared.pid
    assert found["process"]["resident_bytes"] > 10_000_000
    assert 0 < found["process"]["open_files"] <= found["process"]["open_files_max"]
    assert found["process"]["connections"] >= 1, "the one that asks"
    ports = {each["protocol"]: each["address"] for each in found["listeners"]}
    assert ports["kafka"] == f"127.0.0.1:{braid_server_shared.ports['kafka']}"
    (folder,) = found["folders"]
    room = os.statvfs(folder["path"])
    assert folder["total_bytes"] == room.f_blocks * room.f_frsize
    assert 0 < folder["free_bytes"] < folder["total_bytes"]
    assert RECORD_BYTES < folder["topics"][topic] < 2 * RECORD_BYTES
    assert found["silence"] is None
    assert {check["name"] for check in found["checks"]} >= {"listeners", "partitions", "keyvalue", "disk"}
    assert all(check["ok"] for check in found["checks"])


def test_as_a_person_reads_it(braid_server_shared: ServerProcess) -> None:
    braid = Braid(braid_server_shared)
    for _ in range(11):
        braid.ok("topic", "create", fresh("many"))
    said = braid.ok("node", "0")
    assert said.startswith(f"node 0 at 127.0.0.1:{braid_server_shared.ports['kafka']}: alive, controller\n")
    assert "more: --topics" in said
    assert said.endswith("  ready\n")
    assert "more: --topics" not in braid.ok("node", "--topics")
    assert "unknown node 7; nodes: 0" in braid.fails(1, "node", "7")
    assert "is not a node number" in braid.fails(2, "node", "list")


def test_what_is_wrong_is_a_no(tmp_path: Path) -> None:
    """Less room than the node is told to keep free: no disk has that much."""
    with ServerProcess(tmp_path / "data", "--set", f"admin.disk_free_bytes_min={2**60}") as server:
        result = Braid(server)("node")
        assert result.exit_code == 1
        assert "wrong  disk: " in result.stdout
        assert "less than admin.disk_free_bytes_min" in result.stdout


def test_a_node_without_an_admin_port_tells_too(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "admin.enabled=false") as server:
        assert Braid(server).json("node", schema="node")[0]["silence"] is None


def test_who_may_not_is_refused(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *guarded(tmp_path)) as server:
        braid = Braid(server)
        assert "not allowed: " in braid.fails(3, "node", *as_(tmp_path, "ann"))
        assert braid.ok("node", *as_(tmp_path, "root")).endswith("  ready\n")


def test_a_node_that_is_fenced_is_not_asked(braid_server_shared: ServerProcess) -> None:
    row = NodeRow(7, "127.0.0.1:1", "", alive=False, draining=False, controller=False, leads=0, holds=2, in_sync=0)
    with connect(Braid(braid_server_shared).url) as client:
        found = facts_of(client, row)
    assert not found.is_well
    assert (found.process, found.silence) == (None, "fenced: the node is stopped or unreachable")
