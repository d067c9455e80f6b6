"""Kafka's client connection as a link needs it: each request in the version that both ends speak.

Knows: which versions this driver has reasons not to use. Refuses to know: sockets, what is asked.
Invariant: nothing but ApiVersions is asked before its answer has been learned.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Final

import msgspec

from braidlog.client.drivers.link import BufferedWire
from braidlog.client.errors import UnsupportedError
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.connection import ClientConnection, Response
from braidlog.wire.kafka.messages.cluster import ApiVersionsResponse
from braidlog.wire.kafka.rows import Message

CLIENT_ID: Final = "braidlog"
LAST_BY_NAME: Final[dict[int, int]] = {Key.PRODUCE: 12, Key.FETCH: 12, Key.OFFSET_COMMIT: 9, Key.OFFSET_FETCH: 9}
"""From the next version on these name topics by their ids. This driver names them by their names: a topic that was deleted and
made again goes on to be the one that was meant, as in every other dialect."""
_LAST_BEFORE_KIP_890: Final[dict[int, int]] = {Key.END_TXN: 4, Key.TXN_OFFSET_COMMIT: 4}
"""From the next version on a commit gives a new epoch, and partitions need not be added: only where the cluster's feature
`transaction.version` says so, which is not asked for. This driver takes a new epoch after whatever failed."""
_LAST: Final = LAST_BY_NAME | _LAST_BEFORE_KIP_890


class KafkaWire(BufferedWire):
    """Answers come in the order of the requests."""

    def __init__(self) -> None:
        super().__init__(ClientConnection(CLIENT_ID))

    def ask(self, message: Message) -> tuple[Sequence[bytes], Hashable]:
        try:
            version = self._connection.version_of(type(message))
        except ValueError as error:
            raise UnsupportedError(f"kafka: {error}") from error
        return self._connection.request_in_pieces(message, version), None

    def answer(self, event: Response) -> tuple[Hashable, Any]:
        if isinstance(event.message, ApiVersionsResponse):
            self._connection.set_server_versions(_by_name(event.message))
        return None, event.message


def _by_name(told: ApiVersionsResponse) -> ApiVersionsResponse:
    return msgspec.structs.replace(
        told,
        api_keys=[
            msgspec.structs.replace(each, max_version=min(each.max_version, _LAST.get(each.api_key, 2**15 - 1)))
            for each in told.api_keys
        ],
    )
