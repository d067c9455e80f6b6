"""One HTTP/1.1 connection to an etcd member: a request and its response, or an endless response.

Does not handle: etcd's calls.
Invariant: a response, or a line of an endless one, has at most `ANSWER_BYTES_MAX`.
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
    """Client address of a member."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"


def parse_endpoint(url: str) -> Endpoint:
    """Parse `http://10.0.0.1:2379`; raises ValueError with the reason."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(f"{url!r} is not an etcd address such as http://10.0.0.1:2379")
    return Endpoint(parts.hostname, parts.port or 2379, parts.scheme == "https")


class Answer(NamedTuple):
    status: int
    body: bytes


class Connection:
    """Used for one request at a time. After any exception the connection must be closed."""

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
        """Receive a whole response. The connection is reusable if `is_reusable` returns True."""
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
        """Receive an endless response line by line."""
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
                raise ConnectionError(f"{self.endpoint} sent invalid HTTP: {error}") from error
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionError(f"{self.endpoint} closed the connection")
            elif isinstance(event, h11.Event):
                return event

    def is_reusable(self) -> bool:
        """Whether the response was read completely and the server keeps the connection open; prepares the next
        request.
        """
        if self._http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE} or self._reader.at_eof():
            return False
        self._http.start_next_cycle()
        return True

    def is_closing(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()
