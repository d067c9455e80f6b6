"""One HTTP/1.1 connection to a member of etcd: a request, its answer, or an answer that goes on and on.

Knows: h11 over asyncio's streams. Refuses to know: etcd's calls.
Invariant: an answer is no longer than `ANSWER_BYTES_MAX`, and a line of an endless one neither.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import h11

ANSWER_BYTES_MAX: Final = 128 * 1024 * 1024
READ_BYTES: Final = 64 * 1024


class Endpoint(NamedTuple):
    """Where a member listens for clients."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"


def parse_endpoint(url: str) -> Endpoint:
    """`http://10.0.0.1:2379`, or a ValueError that says what is wrong."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(f"{url!r} is no address of etcd; it looks like http://10.0.0.1:2379")
    return Endpoint(parts.hostname, parts.port or 2379, parts.scheme == "https")


class Answer(NamedTuple):
    status: int
    body: bytes


class Connection:
    """Used by one request after the other. Whatever is raised, the connection is of no use any more: close it."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)

    @staticmethod
    async def open(endpoint: Endpoint, tls: ssl.SSLContext | None) -> "Connection":
        reader, writer = await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=tls if endpoint.tls else None, limit=READ_BYTES
        )
        return Connection(endpoint, reader, writer)

    async def send(self, path: str, body: bytes, token: str) -> None:
        headers = [
            ("Host", f"{self.endpoint.host}:{self.endpoint.port}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
        ]
        if token:
            headers.append(("Authorization", token))
        method = "POST" if body else "GET"
        for event in (
            h11.Request(method=method, target=path, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()

    async def receive(self) -> Answer:
        """A whole answer; the connection can be used again if `is_reusable` says so."""
        status, body = 0, bytearray()
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > ANSWER_BYTES_MAX:
                    raise ConnectionError(f"{self.endpoint} answers with more than {ANSWER_BYTES_MAX} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return Answer(status, bytes(body))

    async def lines(self) -> AsyncIterator[Answer]:
        """An answer that does not end, line by line."""
        status, rest = 0, b""
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                *whole, rest = (rest + event.data).split(b"\n")
                for line in whole:
                    yield Answer(status, line)
                if len(rest) > ANSWER_BYTES_MAX:
                    raise ConnectionError(f"{self.endpoint} sends a line of more than {ANSWER_BYTES_MAX} bytes")
            elif isinstance(event, h11.EndOfMessage):
                if rest:
                    yield Answer(status, rest)
                return

    async def _next(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise ConnectionError(f"{self.endpoint} does not speak HTTP: {error}") from error
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionError(f"{self.endpoint} closed the connection")
            elif isinstance(event, h11.Event):
                return event

    def is_reusable(self) -> bool:
        """Ready for the next request, if the answer was read to its end and the other side keeps the connection."""
        if self._http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE} or self._reader.at_eof():
            return False
        self._http.start_next_cycle()
        return True

    def is_closing(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()
