"""Both ends of a connection between two nodes: a follower's, with one API, Kafka's Fetch, in one version; or one for calls."""

from typing import Final

from braidlog.wire.kafka.apis import CALL, FRAME_BYTES_MAX, Api, Key
from braidlog.wire.kafka.connection import ClientConnection, ServerConnection
from braidlog.wire.kafka.messages.replicas import ReplicaFetchRequest, ReplicaFetchResponse
from braidlog.wire.kafka.rows import Span

VERSION: Final = 17
RESPONSE_BYTES_MAX: Final = FRAME_BYTES_MAX + 1024 * 1024
"""Whatever a producer could send in a frame comes back in one, with what stands around it here."""
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
    """A call that takes long holds back no other: answers come in any order."""
    return ClientConnection("braidlog", RESPONSE_BYTES_MAX, apis={CALL.request: CALL}, in_order=False)
