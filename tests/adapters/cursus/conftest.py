"""Nodes shared by the tests of this folder."""

import threading
from collections.abc import Iterator

import pytest
from tests.adapters.cursus.drive import Client, batch, prepare
from tests.adapters.cursus.held_syncs import HoldingNode

from braidlog.security.authorization import hash_token
from braidlog.testing.server import ServerProcess

CONFIG = """
[auth.tokens]
admin = "{admin}"
reader = "{reader}"
[[auth.rules]]
principal = "admin"
operations = ["*"]
[[auth.rules]]
principal = "reader"
operations = ["read"]
topic = "open*"
"""


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node that follows one topic, waits for a replica of another, and takes only small batches in a third."""
    folder = tmp_path_factory.mktemp("prepared") / "data"
    prepare(folder)
    with ServerProcess(folder) as server, Client(server) as client:
        client.ok("CREATE topic=plain partitions=2")
        client.ack(batch("plain", b"0", b"1", b"2", b"3", b"4"))
        client.ok("CREATE topic=events partitions=1 event_sourcing=true")
        for member in ("m1", "m2"):
            client.ok(f"JOIN_GROUP topic=plain group=duo member={member}")
        done = threading.Event()
        beating = threading.Thread(target=_beat, args=(client, done))
        beating.start()
        try:
            yield server
        finally:
            done.set()
            beating.join()


def _beat(client: Client, done: threading.Event) -> None:
    """Keep the two members in their group for as long as the tests take."""
    while not done.wait(1.0):
        for member in ("m1", "m2"):
            client.ok(f"HEARTBEAT topic=plain group=duo member={member} generation=2")


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node that asks who one is."""
    folder = tmp_path_factory.mktemp("guarded")
    config = folder / "braid.toml"
    tokens = {name: hash_token(f"{name}-token".encode()).hex() for name in ("admin", "reader")}
    config.write_text(CONFIG.format(**tokens), "utf-8")
    with ServerProcess(folder / "data", "--config", str(config)) as server:
        yield server


@pytest.fixture(scope="session")
def holding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HoldingNode]:
    """A node whose syncs are held when a test wants it."""
    with HoldingNode(tmp_path_factory.mktemp("holding")) as server:
        with Client(server) as client:
            client.ok("CREATE topic=plain partitions=2")
        yield server


@pytest.fixture
def client(prepared: ServerProcess) -> Iterator[Client]:
    with Client(prepared) as connected:
        yield connected
