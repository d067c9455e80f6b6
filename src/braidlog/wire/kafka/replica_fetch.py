"""Both ends of a connection between a follower and its leader: one API, Kafka's Fetch, in one version."""

from typing import Final

from braidlog.wire.kafka.apis import Api, Key
from braidlog.wire.kafka.connection import ClientConnection, ServerConnection
from braidlog.wire.kafka.messages.replicas import ReplicaFetchRequest, ReplicaFetchResponse
from braidlog.wire.kafka.rows import Span

VERSION: Final = 17
REPLICA_FETCH: Final = Api(
    Key.FETCH, ReplicaFetchRequest, ReplicaFetchResponse, Span(VERSION, VERSION), Key.FETCH.flexible_since
)


def leader_connection() -> ServerConnection:
    return ServerConnection({Key.FETCH: REPLICA_FETCH.versions}, apis={int(Key.FETCH): REPLICA_FETCH})


def follower_connection() -> ClientConnection:
    return ClientConnection("braidlog", apis={ReplicaFetchRequest: REPLICA_FETCH})
