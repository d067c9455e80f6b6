"""Kafka's client connection for a link: each request is sent in the newest version that both ends support.

Limits the versions of some requests. Does not handle: sockets, request contents.
Before the ApiVersions answer arrives, only ApiVersions may be sent.
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
"""Later versions name topics by id. This driver uses names, so that a topic that was deleted and created again keeps
working, as in every other dialect."""
_LAST_BEFORE_KIP_890: Final[dict[int, int]] = {Key.END_TXN: 4, Key.TXN_OFFSET_COMMIT: 4}
"""In later versions a commit returns a new epoch, and partitions need not be added, but only if the cluster's feature
`transaction.version` says so, which the driver does not check. This driver requests a new epoch after any failure."""
_LAST: Final = LAST_BY_NAME | _LAST_BEFORE_KIP_890


class KafkaWire(BufferedWire):
    """Matches answers to requests by order."""

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


def _by_name(versions: ApiVersionsResponse) -> ApiVersionsResponse:
    return msgspec.structs.replace(
        versions,
        api_keys=[
            msgspec.structs.replace(
                api_key, max_version=min(api_key.max_version, _LAST.get(api_key.api_key, 2**15 - 1))
            )
            for api_key in versions.api_keys
        ],
    )
