"""A stream ends with its connection, and an open one is not idle: seen from inside a server on this loop."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from braidlog.server.config import load_config
from braidlog.server.node import Server
from braidlog.wire.mlog import messages as m
from braidlog.wire.mlog.connection import frame

SECONDS_MAX = 60.0


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not is_so():  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.005)


def _with_server(folder: Path, work: Callable[[Server], Awaitable[None]]) -> None:
    async def run() -> None:
        ports = {f"listeners.{name}.port": 0 for name in ("mlog", "rustlog", "cursus", "flux")}
        server = Server(load_config(None, {}, {"data_dir": str(folder / "data"), **ports}).config)
        await server.start()
        try:
            await work(server)
        finally:
            await server.stop()

    asyncio.run(run())


def test_a_stream_ends_with_its_connection(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        assert server.services is not None
        await server.services.topics.create("t", 1)
        hosted, listener = server.services.hosting.partition("t", 0), server.listeners["mlog"]
        writers = []
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(frame(m.FetchStreamRequest("t")))
            writers.append(writer)
        await _until(lambda: len(hosted._waiting) == 20)
        now = asyncio.get_running_loop().time()
        assert {session.overdue(now + 10_000) for session in listener.sessions} == {None}
        for number, writer in enumerate(writers):
            writer.transport.abort() if number % 2 else writer.close()
        await _until(lambda: not listener.sessions)
        assert not hosted._waiting

    _with_server(tmp_path, work)


def test_a_stream_that_cannot_write_ends_too(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        assert server.services is not None
        await server.services.topics.create("t", 1)
        listener = server.listeners["mlog"]
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1024)
        value = bytes(2 * 1024 * 1024)
        for _ in range(12):
            writer.write(frame(m.ProduceRequest("t", value, 1)))
            assert await reader.readexactly(6 + 12)
        writer.write(frame(m.FetchStreamRequest("t")))
        (session,) = listener.sessions
        await _until(lambda: session.outbox.blocked_since is not None)
        (turn,) = session._pending.beside
        running = turn.running
        assert running is not None
        writer.transport.abort()
        await _until(lambda: not listener.sessions)
        assert running._coroutine.cr_frame is None  # type: ignore[attr-defined]  # it has ended, it is not merely forgotten

    _with_server(tmp_path, work)


def test_a_stop_does_not_wait_for_streams(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        assert server.services is not None
        await server.services.topics.create("t", 1)
        hosted, listener = server.services.hosting.partition("t", 0), server.listeners["mlog"]
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(frame(m.FetchStreamRequest("t")))
        await _until(lambda: len(hosted._waiting) == 1)
        async with asyncio.timeout(5):
            await listener.stop(SECONDS_MAX)
        assert await reader.read() == b""
        assert not hosted._waiting
        writer.close()

    _with_server(tmp_path, work)
