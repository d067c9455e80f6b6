"""The first contact with a server: soon, or an error that says what was tried."""

import asyncio
import socket
from collections.abc import Callable, Iterator

import pytest

from braidlog.client.drivers.kafka.driver import KafkaDriver
from braidlog.spark import connections
from braidlog.spark.connections import Connection, UnreachedError
from braidlog.testing.server import ServerProcess


@pytest.fixture
def reaching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    monkeypatch.setattr(connections, "FIRST_ANSWER_SECONDS_MAX", 0.3)
    made: list[Connection] = []

    def reach(url: str) -> None:
        made.append(Connection(url))
        made[-1].reach()

    yield reach
    for each in made:
        each.close()


def closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_a_port_that_nobody_listens_at(reaching: Callable[[str], None]) -> None:
    port = closed_port()
    said = rf"no server answers at kafka://127.0.0.1:{port}, tried for 0.3 s: .*Connect call failed.*Kafka port\?"
    with pytest.raises(UnreachedError, match=said):
        reaching(f"kafka://127.0.0.1:{port}")


def test_a_host_that_there_is_not_and_no_token_in_the_error(reaching: Callable[[str], None]) -> None:
    with pytest.raises(UnreachedError, match=r"nosuch\.invalid") as caught:
        reaching("kafka://user:secret@nosuch.invalid:9092")
    assert "secret" not in str(caught.value)


def test_tls_to_a_port_without_it_and_another_dialects_port(
    reaching: Callable[[str], None], braid_server: ServerProcess
) -> None:
    with pytest.raises(UnreachedError, match="does the port use TLS"):
        reaching(f"kafka+tls://127.0.0.1:{braid_server.ports['kafka']}")
    with pytest.raises(UnreachedError, match="did not answer the greeting"):
        reaching(f"kafka://127.0.0.1:{braid_server.ports['flux']}")


def test_a_server_that_is_slow_to_answer_is_waited_for(
    reaching: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken the connection, so that the address is right: a busy machine is no wrong address."""
    asked: list[object] = []

    async def slow(driver: KafkaDriver, topics: object) -> None:
        asked.append(topics)
        await asyncio.sleep(2 * connections.FIRST_ANSWER_SECONDS_MAX)

    monkeypatch.setattr(KafkaDriver, "metadata", slow)
    reaching("kafka://127.0.0.1:1")
    assert asked == [[]]


def test_who_was_reached_once_is_waited_for(
    reaching: Callable[[str], None], braid_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FIRST_ANSWER_SECONDS_MAX", 60.0)
    url = f"kafka://127.0.0.1:{braid_server.ports['kafka']}"
    reaching(url)
    monkeypatch.setattr(connections, "FIRST_ANSWER_SECONDS_MAX", 0.0)
    reaching(url)  # nothing is asked: a node that restarts does not end the queries that know it
