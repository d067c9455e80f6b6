"""A node for tests keeps its ports while it is down."""

import socket
from pathlib import Path

import pytest

from braidlog.testing.server import ServerProcess


def test_nobody_else_gets_the_ports_of_a_node_that_is_down(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, admin=True) as node:
        before = dict(node.ports), node.admin_port
        node.kill()
        for port in (*node.ports.values(), node.admin_port):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
        node.restart()
        assert (node.ports, node.admin_port) == before
