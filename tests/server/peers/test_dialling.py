"""A name that stands for several addresses: any of them will do, and only all of them can refuse."""

import asyncio
import socket
from typing import Any

import pytest
from tests.server.peers.station import play

from braidlog.server.peers import dialling
from braidlog.server.peers.dialling import Dial


def named(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    async def getaddrinfo(_: str, port: int, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)) for host in hosts]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


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
    assert dial._pause == dialling.PAUSE_SECONDS_MAX
    dial.succeeded()
    assert dial._pause == dialling.PAUSE_SECONDS_MIN
