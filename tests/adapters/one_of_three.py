"""Requests to a node that is one of three in its metadata: what it answers, without a socket."""

from typing import Any

from tests.broker.node import Node
from tests.broker.three_nodes import OWN

from braidlog.adapters.contract import Adapter, Connection, answer_of
from braidlog.model.errors import BrokerError
from braidlog.server.adapters import make_adapter
from braidlog.wire.kafka.connection import ClientConnection as KafkaClient
from braidlog.wire.kafka.connection import Response
from braidlog.wire.kafka.rows import Message


class Client:
    """A conversation, as far as these requests need one."""

    def __init__(self, connection: Connection | None = None) -> None:
        self.connection = connection

    principal = "anonymous"
    address = OWN
    peer = "10.9.9.9:1"
    is_forwarded = False

    def hold(self, more_bytes: int) -> None:
        pass


CONVERSATION: Any = Client()


def served(node: Node, adapter: Adapter, request: Any, conversation: Any = CONVERSATION) -> Any:
    """The answer to one request, or the adapter's own words for a refusal."""
    try:
        return node.run(answer_of(adapter.handle, conversation, request))
    except BrokerError as error:
        return adapter.failure(request, error)


def in_bytes(node: Node, adapter: Adapter, data: bytes) -> bytes:
    connection = adapter.open()
    connection.receive(data)
    request = connection.next_event()
    output = connection.respond(request, served(node, adapter, request, Client(connection)))
    return output if isinstance(output, bytes) else b"".join(output)  # type: ignore[arg-type]


def kafka(node: Node, message: Message, version: int | None = None) -> Any:
    client = KafkaClient("c")
    client.receive(in_bytes(node, make_adapter("kafka", node.services), client.request(message, version)))
    answer = client.next_event()
    assert isinstance(answer, Response)
    return answer.message
