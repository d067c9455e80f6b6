"""Kafka's client connection as a link needs it: each request in the version that both ends speak.

Knows: which versions this driver has reasons not to use. Refuses to know: sockets, what is asked.
Invariant: nothing but ApiVersions is asked before its answer has been learned.
"""

from collections.abc import Hashable
from typing import Any, Final

import msgspec

from braidlog.client.errors import UnsupportedError
from braidlog.wire.contract import NEED_DATA, NeedData, Refused
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.connection import ClientConnection
from braidlog.wire.kafka.messages.cluster import ApiVersionsResponse
from braidlog.wire.kafka.rows import Message

CLIENT_ID: Final = "braidlog"
LAST_BY_NAME: Final[dict[int, int]] = {Key.PRODUCE: 12, Key.FETCH: 12, Key.OFFSET_COMMIT: 9, Key.OFFSET_FETCH: 9}
"""From the next version on these name topics by their ids. This driver names them by their names: a topic that was deleted and
made again goes on to be the one that was meant, as in every other dialect."""


class KafkaWire:
    """Answers come in the order of the requests."""

    def __init__(self) -> None:
        self._connection = ClientConnection(CLIENT_ID)

    def ask(self, message: Message) -> tuple[bytes, Hashable]:
        try:
            version = self._connection.version_of(type(message))
        except ValueError as error:
            raise UnsupportedError(f"kafka: {error}") from error
        return self._connection.request(message, version), None

    def receive(self, data: bytes) -> None:
        self._connection.receive(data)

    def buffer(self) -> memoryview | None:
        return self._connection.room()

    def filled(self, size: int) -> None:
        self._connection.filled(size)

    def next_answer(self) -> tuple[Hashable, Any] | NeedData:
        event = self._connection.next_event()
        if event is NEED_DATA:
            return NEED_DATA
        if isinstance(event, Refused):
            raise event.error
        if isinstance(event.message, ApiVersionsResponse):
            self._connection.learn(_by_name(event.message))
        return None, event.message


def _by_name(told: ApiVersionsResponse) -> ApiVersionsResponse:
    return msgspec.structs.replace(
        told,
        api_keys=[
            msgspec.structs.replace(each, max_version=min(each.max_version, LAST_BY_NAME.get(each.api_key, 2**15 - 1)))
            for each in told.api_keys
        ],
    )
