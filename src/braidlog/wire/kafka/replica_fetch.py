"""Both ends of a connection between two nodes: a follower's, with Kafka's Fetch in one version; or one for calls."""

from typing import Final

from braidlog.wire.kafka.apis import CALL, FRAME_BYTES_MAX, Api, Key
from braidlog.wire.kafka.connection import ClientConnection, ServerConnection
from braidlog.wire.kafka.messages.replicas import ReplicaFetchRequest, ReplicaFetchResponse
from braidlog.wire.kafka.rows import Span

VERSION: Final = 17
RESPONSE_BYTES_MAX: Final = FRAME_BYTES_MAX + 1024 * 1024
"""Any batch that a producer can send in a frame fits this frame too, with the fields around it."""
REPLICA_FETCH: Final = Api(
    Key.FETCH,
    "ReplicaFetch",
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    Span(VERSION, VERSION),
    Key.FETCH.flexible_since,
)


def leader_connection() -> ServerConnection:
    apis = (REPLICA_FETCH, CALL)
    return ServerConnection({api.key: api.versions for api in apis}, apis={int(api.key): api for api in apis})


def follower_connection() -> ClientConnection:
    return ClientConnection("braidlog", RESPONSE_BYTES_MAX, apis={ReplicaFetchRequest: REPLICA_FETCH})


def caller_connection() -> ClientConnection:
    """A connection for calls: a slow call does not delay others, because answers come in any order."""
    return ClientConnection("braidlog", RESPONSE_BYTES_MAX, apis={CALL.request: CALL}, in_order=False)
