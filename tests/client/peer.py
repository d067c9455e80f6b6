"""A peer that answers by script, in bytes: what no well-behaved server of ours can be made to say."""

import asyncio
from collections.abc import Callable
from typing import Self

Answer = bytes | None
"""None: hang up instead."""


def cursus_frame(text: str | bytes) -> bytes:
    body = text.encode() if isinstance(text, str) else text
    return len(body).to_bytes(4, "big") + body


def cut_cursus(data: bytearray) -> bytes | None:
    if len(data) < 4 or len(data) < 4 + (size := int.from_bytes(data[:4], "big")):
        return None
    frame = bytes(data[4 : 4 + size])
    del data[: 4 + size]
    # The clients' envelope around a command: a topic of no bytes.
    return frame[2:] if frame.startswith(b"\x00\x00") else frame


def mlog_frame(number: int, text: str) -> bytes:
    return number.to_bytes(2, "big") + len(text.encode()).to_bytes(4, "big") + text.encode()


def cut_mlog(data: bytearray) -> bytes | None:
    """The frame's type as one byte, then its JSON."""
    if len(data) < 6 or len(data) < 6 + (size := int.from_bytes(data[2:6], "big")):
        return None
    frame = bytes(data[1:2]) + bytes(data[6 : 6 + size])
    del data[: 6 + size]
    return frame


def cut_line(data: bytearray) -> bytes | None:
    end = data.find(b"\n")
    if end < 0:
        return None
    line = bytes(data[:end])
    del data[: end + 1]
    return line


class Peer:
    """`answer(frame)` says what is sent back; `said` keeps what came."""

    def __init__(self, cut: Callable[[bytearray], bytes | None], answer: Callable[[bytes], Answer]) -> None:
        self._cut = cut
        self._answer = answer
        self.said: list[bytes] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    def heard(self, start: bytes) -> list[bytes]:
        return [frame for frame in self.said if frame.startswith(start)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        data = bytearray()
        while piece := await _read(reader):
            data += piece
            while (frame := self._cut(data)) is not None:
                self.said.append(frame)
                answer = self._answer(frame)
                if answer is None:
                    writer.transport.abort()
                    return
                writer.write(answer)
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65536)
    except ConnectionError:
        return b""


def script(*steps: tuple[bytes, bytes | list[Answer]]) -> Callable[[bytes], Answer]:
    """The first step whose words a frame begins with answers it; a list is answered one by one, its last for ever."""

    def answer(frame: bytes) -> Answer:
        for start, said in steps:
            if frame.startswith(start):
                if isinstance(said, bytes):
                    return said
                return said.pop(0) if len(said) > 1 else said[0]
        raise AssertionError(f"nobody expected {frame[:100]!r}")

    return answer
