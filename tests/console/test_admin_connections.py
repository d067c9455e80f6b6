"""Requests that never end keep nobody else out."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from tests.console.asking import ask
from tests.server.toy import until

from braidlog.console.admin_connections import CONNECTIONS_MAX, PIPELINED_BYTES_MAX, AdminConnection
from braidlog.testing.server import ServerProcess

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Half"
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_health_is_answered_in_a_crowd_of_half_sent_requests(node: ServerProcess) -> None:
    with ExitStack() as crowd:
        for _ in range(CONNECTIONS_MAX + 80):
            half = crowd.enter_context(socket.create_connection(("127.0.0.1", int(node.admin_url.rsplit(":", 1)[1]))))
            half.sendall(HALF)
        for path in ("/healthz", "/readyz", "/metrics", "/topics"):
            assert ask(f"{node.admin_url}{path}").status == 200


class Slow:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(app: Slow, protocol: type[AdminConnection]) -> AsyncIterator[int]:
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, log_config=None, lifespan="off"))
    running = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        await running


async def say(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    return reader, writer


@pytest.mark.parametrize("begun", [b"", HALF, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc"])
def test_a_request_that_does_not_end_in_time_is_cut_off_and_a_slow_answer_is_not(begun: bytes) -> None:
    class Impatient(AdminConnection):
        seconds_max = 0.05

    async def run() -> None:
        app = Slow()
        async with serving(app, Impatient) as port:
            patient, writer = await say(port, WHOLE)
            half, other = await say(port, begun)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await half.readexactly(1)
            app.may_answer.set()
            assert (await patient.readline()).startswith(b"HTTP/1.1 204")
            for each in (writer, other):
                each.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("asked", [WHOLE, WHOLE * 2, WHOLE * 2 + HALF])
def test_a_client_that_is_gone_gives_its_place_back_before_it_is_answered(asked: bytes, *, is_reset: bool) -> None:
    there: list[AdminConnection] = []

    class Noted(AdminConnection):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            there.append(self)

    async def run() -> None:
        app = Slow()
        async with serving(app, Noted) as port:
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(asked)
                await until(lambda: bool(there))
                if is_reset:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await until(lambda: not there[0].connections)
            app.may_answer.set()

    asyncio.run(run())


def test_requests_behind_one_that_is_answered_are_bounded_and_answered() -> None:
    async def run() -> None:
        app = Slow()
        async with serving(app, AdminConnection) as port:
            few, writer = await say(port, WHOLE * 3)
            many, other = await say(port, WHOLE * (2 + PIPELINED_BYTES_MAX // len(WHOLE)))
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await many.readexactly(1)
            app.may_answer.set()
            for _ in range(3):
                assert (await few.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            for each in (writer, other):
                each.close()

    asyncio.run(run())


def test_one_too_many_pushes_out_the_oldest_that_has_asked_nothing() -> None:
    class Narrow(AdminConnection):
        connections_max = 3

    async def run() -> None:
        app = Slow()
        async with serving(app, Narrow) as port:
            asked, first = await say(port, WHOLE)
            half, second = await say(port, HALF)
            another, third = await say(port, HALF)
            late, fourth = await say(port, WHOLE)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await half.readexactly(1)
            app.may_answer.set()
            for reader in (asked, late):
                assert (await reader.readline()).startswith(b"HTTP/1.1 204")
            third.write(b": 1\r\n\r\n")
            assert (await another.readline()).startswith(b"HTTP/1.1 204")
            for each in (first, second, third, fourth):
                each.close()

    asyncio.run(run())
