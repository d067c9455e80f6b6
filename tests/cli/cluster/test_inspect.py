"""`braid cluster status`, `nodes`, `partitions` of one real node; of three in `test_doctor.py`, by hand-made answers."""

from tests.cli.braid import Braid, fresh

from braidlog.testing.server import ServerProcess


def test_one_node_tells_of_itself(braid_server_shared: ServerProcess) -> None:
    braid = Braid(braid_server_shared)
    topic = fresh()
    braid.ok("topic", "create", topic, "--partitions", "2")
    found = braid.json("cluster", "status", schema="cluster-status")
    assert (found["nodes"], found["nodes_alive"], found["controller"], found["leaderless"]) == (1, 1, 0, 0)
    assert found["partitions"] >= 2
    said = braid.ok("cluster", "status")
    assert "1 of 1 node alive" in said
    assert "controller: node 0" in said
    (row,) = braid.json("cluster", "nodes", schema="cluster-nodes")
    assert row["address"] == f"127.0.0.1:{braid_server_shared.ports['kafka']}"
    assert row["leads"] == row["holds"] == row["in_sync"] >= 2
    assert "0 (controller)" in braid.ok("cluster", "nodes")
    told = braid.json("cluster", "partitions", topic, schema="cluster-partitions")
    assert [(each["partition"], each["leader"], each["replicas"]) for each in told] == [(0, 0, [0]), (1, 0, [0])]
    assert braid.ok("cluster", "partitions", topic, "--under-replicated") == "No partition is under-replicated.\n"
    lines = braid.ok("cluster", "partitions", topic).splitlines()
    assert lines[1].split() == [topic, "0", "0", "1", "0", "0"]


def test_other_doors_say_who_can_tell(braid_server_shared: ServerProcess) -> None:
    url = f"flux://127.0.0.1:{braid_server_shared.ports['flux']}"
    said = Braid(braid_server_shared).fails(3, "cluster", "status", "--server", url)
    assert "describing the nodes of a cluster; supported by: kafka" in said
