"""What keeps a leader on a node that drains, in words; of three real nodes in `tests/cluster/test_three_nodes.py`."""

import msgspec
from tests.cli.braid import Braid
from tests.cli.cluster.test_doctor import WELL, changed

from braidlog.cli.cluster.drain import StillLed, still_led
from braidlog.testing.server import ServerProcess


def test_what_another_could_lead_has_no_reason_to_stay() -> None:
    assert still_led(WELL, 1) == [StillLed("t", 0, "")]
    assert still_led(WELL, 9) == []


def test_why_a_leader_stays() -> None:
    alone = "no other eligible replica is in sync (on: 2, 3)"
    assert still_led(changed(place={"in_sync": (1,)}), 1) == [StillLed("t", 0, alone)]
    nodes = tuple(msgspec.structs.replace(each, draining=True) for each in WELL.nodes)
    assert still_led(msgspec.structs.replace(WELL, nodes=nodes), 1) == [StillLed("t", 0, alone)]
    nodes = tuple(msgspec.structs.replace(each, alive=each.node == 1) for each in WELL.nodes)
    assert still_led(msgspec.structs.replace(WELL, nodes=nodes), 1) == [StillLed("t", 0, alone)]
    assert still_led(changed(place={"replicas": (1,), "in_sync": (1,)}), 1)[0].reason == "it has no other replica"


def test_a_node_that_is_alone_cannot_be_drained(braid_server_shared: ServerProcess) -> None:
    said = Braid(braid_server_shared).fails(3, "cluster", "drain", "0")
    assert "this node is the only one: no other node can lead its partitions" in said
