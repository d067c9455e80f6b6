"""Both ends of a connection between a follower and its leader: one API, Kafka's Fetch, in one version."""

from typing import Final

from braidlog.wire.kafka.apis import FRAME_BYTES_MAX, Api, Key
from braidlog.wire.kafka.connection import ClientConnection, ServerConnection
from braidlog.wire.kafka.messages.replicas import ReplicaFetchRequest, ReplicaFetchResponse
from braidlog.wire.kafka.rows import Span

VERSION: Final = 17
RESPONSE_BYTES_MAX: Final = FRAME_BYTES_MAX + 1024 * 1024
"""Whatever a producer could send in a frame comes back in one, with what stands around it here."""
REPLICA_FETCH: Final = Api(
    Key.FETCH, ReplicaFetchRequest, ReplicaFetchResponse, Span(VERSION, VERSION), Key.FETCH.flexible_since
)


def leader_connection() -> ServerConnection:
    return ServerConnection({Key.FETCH: REPLICA_FETCH.versions}, apis={int(Key.FETCH): REPLICA_FETCH})


def follower_connection() -> ClientConnection:
    return ClientConnection("braidlog", RESPONSE_BYTES_MAX, apis={ReplicaFetchRequest: REPLICA_FETCH})
