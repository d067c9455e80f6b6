"""One node with topics of every kind."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from tests.spark.source.topics import SECONDS_MAX, Runtime, prepare, transactions

from braidlog.spark import connections
from braidlog.testing.server import ServerProcess


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    found = Runtime(str(tmp_path_factory.mktemp("world") / "data"))
    prepare(found)
    with ServerProcess(Path(found.folder), admin=True) as server:
        found.servers = f"127.0.0.1:{server.ports['kafka']}"
        found.url = f"kafka://{found.servers}"
        found.registry = server.registry_url
        writer = transactions(found)
        yield found
        with contextlib.suppress(KafkaException):  # the node does it by itself in a session of more than 15 minutes
            writer.abort_transaction(SECONDS_MAX)
        connections.close_idle()
