"""A name that stands for several addresses: any of them will do, and only all of them can refuse."""

import asyncio
import socket
from typing import Any

import pytest
from tests.server.peers.station import play

from braidlog.server.peers import dialing
from braidlog.server.peers.dialing import Dial


def named(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    async def getaddrinfo(_: str, port: int, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)) for host in hosts]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


class Kept(asyncio.Protocol):
    transport: asyncio.BaseTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@play
async def test_any_address_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.2", 0)
    port = server.sockets[0].getsockname()[1]
    dial = Dial(1, 2, lambda _: ("name", port), None)
    named(monkeypatch, "127.0.0.1", "127.0.0.2")
    assert isinstance(await dial.open(("name", port), asyncio.Protocol), asyncio.Protocol)
    server.close()


@play
async def test_both_ends_of_a_connection_end_it_when_they_are_not_heard() -> None:
    """Or what was sent in a cut would be sent again long after it, and everything else waits behind that."""
    accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    listening = socket.create_server(("127.0.0.1", 0))
    dialing.close_when_silent(listening)
    server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=listening)
    address = listening.getsockname()
    made = await Dial(1, 2, lambda _: address, None).open(address, Kept)
    for transport in (made.transport, (await accepted).transport):
        connection = transport.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == dialing.UNHEARD_MS
        transport.close()
    server.close()


@play
async def test_only_all_of_them_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    dial = Dial(1, 2, lambda _: None, None)
    port = free_port()
    named(monkeypatch, "127.0.0.1", "127.0.0.2")
    with pytest.raises(ConnectionRefusedError):
        await dial.open(("name", port), asyncio.Protocol)
    named(monkeypatch, "127.0.0.1", "255.255.255.255", "127.0.0.2")
    with pytest.raises(OSError, match=r"\w") as found:
        await dial.open(("name", port), asyncio.Protocol)
    assert not isinstance(found.value, ConnectionRefusedError)


@play
async def test_a_peer_that_cannot_be_reached_is_left_alone_longer_each_time() -> None:
    port = free_port()
    dial = Dial(1, 2, lambda _: ("127.0.0.1", port), None)
    pauses = []
    for _ in range(8):
        assert await dial.connect(asyncio.Protocol) is None
        assert not dial.may_try()
        pauses.append(dial._not_before)
        dial._not_before = 0.0
    assert dial._pause == dialing.PAUSE_SECONDS_MAX
    dial.succeeded()
    assert dial._pause == dialing.PAUSE_SECONDS_MIN
