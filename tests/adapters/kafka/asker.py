"""One connection that asks in any version and waits for the answers: for what no client library would send."""

from typing import Any

from tests.adapters.connected import Connected

from braidlog.wire.kafka.connection import ClientConnection, Response
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import topics as m
from braidlog.wire.kafka.rows import Message

ANSWER_SECONDS_MAX = 60


def create(asker: "Asker", topic: str, partitions: int = 1) -> None:
    told = asker.ask(m.CreateTopicsRequest([m.CreateTopicsRequestTopic(topic, partitions, 1)]))
    assert told.topics[0].error_code == 0


class Asker(Connected):
    """`with Asker(address) as asker: asker.ask(message, version)`"""

    def __init__(self, address: tuple[str, int], client_id: str = "asker") -> None:
        super().__init__(address)
        self.connection = ClientConnection(client_id)

    def ask(self, message: Message, version: int | None = None) -> Any:
        self.send(message, version)
        return self.answer()

    def send(self, message: Message, version: int | None = None) -> None:
        self.socket.sendall(self.connection.request(message, version))

    def answer(self) -> Any:
        event = self.next_event()
        assert isinstance(event, Response), event
        return event.message

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, size: int) -> bytes:
        """So many bytes, or what came before the end."""
        found = b""
        while len(found) < size and (data := self.socket.recv(size - len(found))):
            found += data
        return found

    is_closed = Connected.is_closed_silently

    # -- a member of a group -------------------------------------------------------------------------------------

    def join(self, group: str, member: str = "", version: int = 9, **more: Any) -> Any:
        """Join as consumers do: with an id that is handed out first, where it is."""
        fields: dict[str, Any] = {
            "group_id": group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": member,
            "protocol_type": "consumer",
            "protocols": [g.JoinGroupRequestProtocol("range", b"metadata")],
            **more,
        }
        told = self.ask(g.JoinGroupRequest(**fields), version)
        if told.error_code == 79:
            told = self.ask(g.JoinGroupRequest(**{**fields, "member_id": told.member_id}), version)
        return told

    def alone(self, group: str, share: bytes = b"share", **more: Any) -> Any:
        """Be the only member of a group, its work assigned."""
        told = self.join(group, **more)
        assert told.error_code == 0, told
        assignments = [g.SyncGroupRequestAssignment(told.member_id, share)]
        request = g.SyncGroupRequest(
            group, told.generation_id, told.member_id, more.get("group_instance_id"), assignments=assignments
        )
        assert self.ask(request).assignment == share
        return told
