"""A proxy that records traffic, and can split and delay it.

Backpressure is kept: while one side does not read, the other side is not read from. The log contains the bytes as
received, before splitting. When one side closes, the other side is closed after all bytes are delivered.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from braidlog.tools.wire.capture.pcapng import Address
from braidlog.tools.wire.capture.recorder import Recorder
from braidlog.tools.wire.network_faults import Splitter
from braidlog.wire.observer import Side

READ_BYTES: Final = 64 * 1024
CONNECT_SECONDS_MAX: Final = 10.0


class TapSettings(msgspec.Struct, frozen=True):
    """Settings of a tap. `split`: as for `Splitter`; each piece is delayed by `delay_ms`."""

    dialect: str
    listen: Address
    to: Address
    split: str = ""
    delay_ms: int = 0
    seed: int = 0


class Tap:
    """The proxy. After `await start()` clients connect to `port`; end it with `await stop()`."""

    def __init__(self, settings: TapSettings, recorder: Recorder) -> None:
        self._settings = settings
        self._recorder = recorder
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self._count = 0
        self.port = 0

    async def start(self) -> None:
        listen = self._settings.listen
        self._server = await asyncio.start_server(self._serve, listen.host, listen.port, limit=READ_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        relays = list(self._relays)
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        try:
            async with _closing(writer):
                await self._relay(reader, writer)
        except asyncio.CancelledError:
            pass  # the tap stops
        finally:
            self._relays.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to = self._settings.to
        client = Address(*writer.get_extra_info("peername")[:2])
        self._count += 1
        number = self._recorder.opened(self._settings.dialect, client, to)
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                beyond_reader, beyond = await asyncio.open_connection(to.host, to.port, limit=READ_BYTES)
        except OSError:  # refused, or already closed
            self._recorder.closed(number)
            return
        try:
            async with _closing(beyond), asyncio.TaskGroup() as group:
                group.create_task(self._pump(number, Side.CLIENT, reader, beyond))
                group.create_task(self._pump(number, Side.SERVER, beyond_reader, writer))
        finally:
            self._recorder.closed(number)

    async def _pump(self, number: int, side: Side, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = Splitter(self._settings.split, hash((self._settings.seed, number, side is Side.CLIENT)))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(READ_BYTES):
                self._recorder.spoke(number, side, data)
                for piece in splitter.pieces(data):
                    if self._settings.delay_ms:
                        await asyncio.sleep(self._settings.delay_ms / 1000)
                    writer.write(piece)
                    await writer.drain()
        # Forward a half-close: the other side may still send data.
        with contextlib.suppress(OSError):
            writer.write_eof()


@contextlib.asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Close a stream and retrieve its error, which asyncio would otherwise print at garbage collection."""
    try:
        yield
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    except BaseException:
        writer.transport.abort()
        raise
