"""One node for all tests of this folder (one in each worker)."""

from collections.abc import Iterator

import pytest

from braidlog.testing.server import ServerProcess


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("wire") / "data") as server:
        yield server
