"""A blocking Mayfly client for tests: typed questions, answers by id, and raw bytes for what no client would send."""

from typing import Any

from tests.adapters.connected import Connected

from braidlog.testing.server import ServerProcess
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import ClientConnection, Request, Response


class Client(Connected):
    """One connection."""

    connection: ClientConnection

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server.address("mayfly"))
        self.connection = ClientConnection()

    def written(self, message: m.Message) -> bytes:
        return self.connection.request(Request(self.connection.next_id(), message))

    def send(self, *messages: m.Message) -> None:
        self.socket.sendall(b"".join(map(self.written, messages)))

    def receive(self) -> Response:
        """The next answer, whosever it is."""
        event = self.next_event()
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

    def receive_raw(self) -> bytes:
        head = self.read_exactly(12)
        return head + self.read_exactly(int.from_bytes(head[8:], "big"))

    def ask_raw(self, data: bytes) -> bytes:
        self.socket.sendall(data)
        return self.receive_raw()
