"""`braid cluster init` on a real folder and a real etcd: what it says, and that the node is the first of a cluster then."""

import subprocess
from pathlib import Path

from tests.cli.braid import PROGRAM, SECONDS_MAX
from tests.server.etcd.members import members

import braidlog
from braidlog.testing.server import ServerProcess


def test_a_single_node_becomes_the_first_of_a_cluster(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with braidlog.Log(str(data)) as log:
        log.create_topic("orders")
        log.topic("orders").append(b"kept")
    words = ["cluster", "init", "--data-dir", str(data)]

    def braid(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *words, *more], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )

    refused = braid()
    assert (refused.returncode != 0, "set [cluster] etcd" in refused.stderr) == (True, True)
    with members(tmp_path, 1) as (etcd,):
        setting = ["--set", f"cluster.etcd={etcd.url}"]
        said = braid(*setting)
        assert "is node 0 of cluster " in said.stdout
        assert "already belongs to cluster" in braid(*setting).stderr
        with (
            ServerProcess(data, *setting) as node,
            braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client,
        ):
            assert client.admin.span("orders", 0).latest == 1
