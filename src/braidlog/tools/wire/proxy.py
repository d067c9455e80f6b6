"""A proxy that writes down what passes, and may cut and delay it.

Knows: two sockets for each connection. Refuses to know: dialects, how a log looks.
Invariants: a side that does not take its bytes is not sent more, and the other side is not read from meanwhile; what is written
down is what was received, before it is cut; when one side ends, the other is told, and what is under way still arrives.
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
    """`split` is as `Splitter` takes it; each piece is held back for `delay_ms`."""

    dialect: str
    listen: Address
    to: Address
    split: str = ""
    delay_ms: int = 0
    seed: int = 0


class Tap:
    """`await start()`, then `port` is where to connect; `await stop()`."""

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
            pass  # the tap stops: nobody waits for this connection
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
        except OSError:  # refused, or too late
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
        # Half a goodbye is passed on as such: the other side may still have something to say.
        with contextlib.suppress(OSError):
            writer.write_eof()


@contextlib.asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Close it and hear how it ended: an error that nobody asks for is printed when the stream is collected."""
    try:
        yield
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    except BaseException:
        writer.transport.abort()
        raise
