"""A pytest plugin: `def test_it(braid_server)` gets a real node on free ports.

Knows: pytest. Refuses to know: what the test does with the node.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from braidlog.testing.server import ServerProcess


@pytest.fixture
def braid_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A node of its own for one test, over an empty folder: `braid_server.ports["rustlog"]`."""
    with ServerProcess(tmp_path / "braid-data") as server:
        yield server


@pytest.fixture(scope="session")
def braid_server_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One node for the whole run: faster, for tests that mind their own topics."""
    many = ("--set", "state.topics_burst=100000")  # topics that tests make by using them: all of them are one principal
    with ServerProcess(tmp_path_factory.mktemp("braid") / "data", *many) as server:
        yield server
