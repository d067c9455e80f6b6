"""Which node a certificate's name is of."""

import pytest

from braidlog.adapters.peers.follower_sessions import name_of, node_of


@pytest.mark.parametrize("node", [0, 1, 42, 2**31 - 1])
def test_a_node_has_a_name(node: int) -> None:
    assert node_of(name_of(node)) == node


OTHERS = [None, "", "anonymous", "alice", "node-", "node-01", "node--1", "node-1 ", "node-1\n", "xnode-1", "Node-1"]


@pytest.mark.parametrize("name", [*OTHERS, "node-\N{ARABIC-INDIC DIGIT ONE}"])
def test_another_name_is_no_nodes(name: str | None) -> None:
    assert node_of(name) is None
