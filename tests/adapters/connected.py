"""What the blocking clients of tests share: one connection on which every wait has a deadline."""

import socket
from typing import Any, Self

from braidlog.wire.contract import NEED_DATA

SECONDS_MAX = 60.0


class Connected:
    """A socket, and the client's end of a dialect on it."""

    connection: Any = None

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def next_event(self) -> Any:
        """The next event of the connection; EOFError where the server has closed."""
        while (event := self.connection.next_event()) is NEED_DATA:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self.connection.receive(data)
        return event

    def read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError(f"the server hung up after {bytes(data[:80])!r}")
            data += more
        return bytes(data)

    def is_closed(self) -> bool:
        """Whether the server ends the connection; whatever it still says is read and thrown away."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def is_closed_silently(self) -> bool:
        """Whether the server ends the connection without another word."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
