"""A blocking RustLog client for tests: typed questions in either form, and raw payloads for what no client would send."""

import json
import struct
from collections.abc import Sequence
from typing import Any

from tests.adapters.connected import Connected

from braidlog.testing.server import ServerProcess
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.connection import ClientConnection, Response
from braidlog.wire.rustlog.messages import Form


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


class Client(Connected):
    """One connection. `ask` is typed, `ask_raw` takes and gives payloads."""

    def __init__(self, server: ServerProcess, form: Form = Form.JSON) -> None:
        super().__init__(server.address("rustlog"))
        self.connection = ClientConnection(form)

    # -- typed -----------------------------------------------------------------------------------------------

    def send(self, *messages: m.Message) -> None:
        self.socket.sendall(b"".join(map(self.connection.request, messages)))

    def receive(self) -> Any:
        event = self.next_event()
        assert isinstance(event, Response), event
        return event.message

    def ask(self, message: m.Message) -> Any:
        self.send(message)
        return self.receive()

    def produce(self, topic: str, *values: bytes, partition: int = 0, keys: list[bytes | None] | None = None) -> Any:
        return self.ask(m.Produce(topic=topic, partition=partition, records=list(values), keys=keys))

    def fetch(
        self,
        topic: str,
        offset: int = 0,
        *,
        partition: int = 0,
        group: str = "",
        max_bytes: int = 1 << 20,
        wait_ms: int | None = None,
    ) -> Any:
        return self.ask(
            m.Fetch(
                group_id=group,
                topic=topic,
                partition=partition,
                offset=offset,
                max_bytes=max_bytes,
                max_wait_ms=wait_ms,
            )
        )

    def create(self, topic: str, partitions: int = 1) -> Any:
        return self.ask(m.CreateTopic(topic=topic, partition_count=partitions))

    def commit(self, group: str, topic: str, offset: int, partition: int = 0) -> Any:
        return self.ask(m.OffsetCommit(group=group, topic=topic, partition=partition, offset=offset))

    def committed(self, group: str, topic: str, partition: int = 0) -> Any:
        return self.ask(m.OffsetFetch(group=group, topic=topic, partition=partition)).offset

    # -- raw -------------------------------------------------------------------------------------------------

    def receive_raw(self) -> bytes:
        return self.read_exactly(struct.unpack(">I", self.read_exactly(4))[0])

    def ask_raw(self, payload: bytes) -> bytes:
        self.socket.sendall(framed(payload))
        return self.receive_raw()

    def ask_json(self, **fields: object) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.ask_raw(json.dumps(fields).encode()))
        return answer


def payloads(records: Sequence[m.FetchedRecord] | Sequence[bytes]) -> list[bytes]:
    """The values of an answer to Fetch, in either form."""
    return [record if isinstance(record, bytes) else record.payload for record in records]
