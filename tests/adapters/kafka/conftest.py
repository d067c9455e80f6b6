"""How tests of this folder reach the node that their file starts as `server`."""

from collections.abc import Iterator

import pytest
from tests.adapters.kafka.asker import Asker

from braidlog.testing.server import ServerProcess


@pytest.fixture
def asker(server: ServerProcess) -> Iterator[Asker]:
    with Asker(server.address("kafka")) as made:
        yield made


@pytest.fixture
def address(server: ServerProcess) -> str:
    return "{}:{}".format(*server.address("kafka"))
