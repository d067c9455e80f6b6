"""The least a server can do on uvloop: the limits that a door is measured against.

| kind | answers |
|---|---|
| echo | each read with the bytes it brought |
| framed | each frame (a length and so many bytes) with itself, all of one read in one write |
| sender | each frame with so many bytes that were there before: what the loopback carries |
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import uvloop


class Echo(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class FramedEcho(Echo):
    def __init__(self) -> None:
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        position, answers = 0, []
        while len(data) - position >= 4:
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if end > len(data):
                break
            answers.append(data[position:end])
            position = end
        self._rest = data[position:]
        self.transport.write(b"".join(answers))


class Sender(Echo):
    """Each frame of a request is answered with a frame of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._answer = size.to_bytes(4, "big") + bytes(size)
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        position = 0
        while len(data) - position >= 4:
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if end > len(data):
                break
            self.transport.write(self._answer)
            position = end
        self._rest = data[position:]


def serve_echo(ports: Any, kind: str, size: int) -> None:  # noqa: ANN401 - a queue of multiprocessing
    """In a process of its own: put the port into `ports`, answer until ended."""
    kinds: dict[str, Callable[[], Echo]] = {"echo": Echo, "framed": FramedEcho, "sender": lambda: Sender(size)}
    uvloop.run(_serve(ports, kinds[kind]))


async def _serve(ports: Any, protocol: Callable[[], Echo]) -> None:  # noqa: ANN401
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    ports.put(server.sockets[0].getsockname()[1])
    await server.serve_forever()
