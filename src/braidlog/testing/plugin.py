"""A pytest plugin: `def test_it(braid_server)` gets a real node on free ports."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from braidlog.testing.server import ServerProcess


@pytest.fixture
def braid_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A separate node for each test, with an empty data folder: `braid_server.ports["rustlog"]`."""
    with ServerProcess(tmp_path / "braid-data") as server:
        yield server


@pytest.fixture(scope="session")
def braid_server_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One node for the whole run: faster, for tests that use their own topics."""
    many = ("--set", "state.topics_burst=100000")  # all tests are one principal, and create topics by using them
    with ServerProcess(tmp_path_factory.mktemp("braid") / "data", *many) as server:
        yield server
