"""A loopback proxy between client and server: it counts, and it cuts."""

import asyncio
import contextlib
from typing import Self


class Pipe:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.asked = bytearray()
        """What the client sent; empty if the proxy does not remember."""
        self.asked_bytes = 0
        self.answered = 0
        self._ends = (client, server)

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()


class Proxy:
    """Listens on a free port. `cut_asked_at`/`cut_answered_at`: so many bytes of a connection get through, then it is cut."""

    def __init__(self, port: int = 0, *, remembers: bool = True) -> None:
        self.server_port = port
        self._remembers = remembers
        self.port = 0
        self.pipes: list[Pipe] = []
        self.cut_asked_at: int | None = None
        self.cut_answered_at: int | None = None
        self.cuts = 0
        self.holds_answers = asyncio.Event()
        self.holds_answers.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self) -> None:
        for pipe in self.pipes:
            pipe.cut()

    @property
    def asked(self) -> list[bytes]:
        """What clients sent, one piece for each connection."""
        return [bytes(pipe.asked) for pipe in self.pipes]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        except OSError:
            writer.transport.abort()
            return
        pipe = Pipe(writer, server_writer)
        self.pipes.append(pipe)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._forward(reader, server_writer, pipe), self._back(server_reader, writer, pipe))
        pipe.cut()
        if not self._remembers:
            self.pipes.remove(pipe)
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipe: Pipe) -> None:
        while data := await reader.read(65536):
            room = None if self.cut_asked_at is None else max(self.cut_asked_at - pipe.asked_bytes, 0)
            if room is not None and len(data) > room:
                writer.write(data[:room])
                await writer.drain()
                writer.close()  # not aborted: what was let through arrives
                await writer.wait_closed()
                raise ConnectionResetError(self._cut())
            pipe.asked_bytes += len(data)
            if self._remembers:
                pipe.asked += data
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipe: Pipe) -> None:
        while data := await reader.read(65536):
            await self.holds_answers.wait()
            room = None if self.cut_answered_at is None else max(self.cut_answered_at - pipe.answered, 0)
            if room is not None and len(data) > room:
                writer.write(data[:room])
                await writer.drain()
                raise ConnectionResetError(self._cut())
            pipe.answered += len(data)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError

    def _cut(self) -> str:
        self.cuts += 1
        self.cut_asked_at = self.cut_answered_at = None
        return "cut"
