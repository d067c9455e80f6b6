"""The node of most tests here."""

import pytest
from tests.broker.node import Node, node_with


@pytest.fixture
def node() -> Node:
    return node_with(a=4)
