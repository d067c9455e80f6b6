"""A blocking Mayfly client for tests: typed questions, answers by id, and raw bytes for what no client would send."""

import socket
from types import TracebackType
from typing import Any, Self

from braidlog.testing.server import ServerProcess
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import ClientConnection, Request, Response

SECONDS_MAX = 60.0


class Client:
    """One connection."""

    def __init__(self, server: ServerProcess) -> None:
        self.socket = socket.create_connection(server.address("mayfly"), SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = ClientConnection()

    def written(self, message: m.Message) -> bytes:
        return self.connection.request(Request(self.connection.next_id(), message))

    def send(self, *messages: m.Message) -> None:
        self.socket.sendall(b"".join(map(self.written, messages)))

    def receive(self) -> Response:
        """The next answer, whosever it is."""
        while (event := self.connection.next_event()) is NEED_DATA:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self.connection.receive(data)
        assert isinstance(event, Response), event
        return event

    def ask(self, message: m.Message) -> Any:
        self.send(message)
        return self.receive().message

    def ask_all(self, *messages: m.Message) -> list[Any]:
        """All at once; the answers in the order of the questions, in whichever they came."""
        ids = [self.connection.next_id() for _ in messages]
        requests = [Request(number, message) for number, message in zip(ids, messages, strict=True)]
        self.socket.sendall(b"".join(map(self.connection.request, requests)))
        answers = {}
        for _ in ids:
            response = self.receive()
            answers[response.id] = response.message
        return [answers[number] for number in ids]

    # -- raw -------------------------------------------------------------------------------------------------

    def read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)

    def receive_raw(self) -> bytes:
        head = self.read_exactly(12)
        return head + self.read_exactly(int.from_bytes(head[8:], "big"))

    def ask_raw(self, data: bytes) -> bytes:
        self.socket.sendall(data)
        return self.receive_raw()

    def is_closed(self) -> bool:
        """Whether the server ends the connection; whatever it still says is read and thrown away."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
