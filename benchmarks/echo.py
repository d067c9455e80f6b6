"""The least a server can do on uvloop: give back what came. The limit that small frames are measured against.

`framed`: with a length in front of each frame it answers frame by frame, all answers of one read in one write; else it answers
each read with the bytes it brought.
"""

import asyncio
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


def serve_echo(ports: Any, framed: bool) -> None:  # noqa: ANN401, FBT001 - a queue of multiprocessing; called by it
    """In a process of its own: put the port into `ports`, echo until ended."""
    uvloop.run(_serve(ports, FramedEcho if framed else Echo))


async def _serve(ports: Any, protocol: type[Echo]) -> None:  # noqa: ANN401
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    ports.put(server.sockets[0].getsockname()[1])
    await server.serve_forever()
