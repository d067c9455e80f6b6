"""The table of APIs: which there are, in which versions, and from which one on each is flexible.

Knows: numbers. Refuses to know: fields (`messages/`), bytes, and which of them a node serves (its adapter says so).
Invariant: a key, a request type and a response type each occur in one row only. What a client is told in ApiVersions, the page in
docs/dialects and the parameters of the tests are all made of this table; our own APIs stand apart: only our own client is told.
"""

from enum import IntEnum
from types import ModuleType
from typing import Final

import msgspec

from braidlog.wire.kafka.messages import cluster, data, groups, security, staging, topics, transactions
from braidlog.wire.kafka.rows import Message, Span

FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
"""Of any frame, without the four bytes of its length: what Kafka's brokers accept unless told otherwise."""

SMALL_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a request that carries no records. Names and numbers grow in memory about tenfold: that much, and no more, is believed."""


class Key(IntEnum):
    """The number of an API on the wire."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    DESCRIBE_TOPIC_PARTITIONS = 75
    COMMIT_BATCH = 0x6272
    ABORT_BATCH = 0x6273
    SINK_STATE = 0x6274


class Api(msgspec.Struct, frozen=True):
    """One row: a request, its response, and the versions in which they are spoken."""

    key: Key
    request: type[Message]
    response: type[Message]
    versions: Span
    flexible_since: int | None
    """The first flexible version, None if none is."""
    advertised_first: int | None = None
    """What clients are told as the first version, where that is not `versions.first`."""

    @property
    def name(self) -> str:
        return self.request.__name__.removesuffix("Request")

    @property
    def advertised(self) -> Span:
        return self.versions if self.advertised_first is None else Span(self.advertised_first, self.versions.last)

    @property
    def request_bytes_max(self) -> int:
        return FRAME_BYTES_MAX if self.key is Key.PRODUCE else SMALL_BYTES_MAX

    def is_flexible(self, version: int) -> bool:
        return self.flexible_since is not None and version >= self.flexible_since

    def response_header_is_flexible(self, version: int) -> bool:
        # A client that asks for versions cannot know yet which header a server writes: this response has the old one for ever.
        return self.is_flexible(version) and self.key is not Key.API_VERSIONS


def _api(key: Key, messages: ModuleType, versions: str, flexible_since: int | None) -> Api:
    """A request and its response are named after their key: FIND_COORDINATOR has FindCoordinatorRequest."""
    name = key.name.title().replace("_", "")
    request, response = getattr(messages, f"{name}Request"), getattr(messages, f"{name}Response")
    first, last = versions.split("-")
    return Api(key, request, response, Span(int(first), int(last)), flexible_since)


_K = Key
APIS: Final = (
    # Versions 0 to 2 of Produce carry message formats that nobody keeps any more; librdkafka before 2.11 looks for a 0 in the
    # table and compresses nothing without it, so that it is said, and not served.
    msgspec.structs.replace(
        _api(_K.PRODUCE, data, "3-13", 9),
        advertised_first=0,
    ),
    _api(_K.FETCH, data, "4-18", 12),
    _api(_K.LIST_OFFSETS, data, "1-11", 6),
    _api(_K.METADATA, cluster, "0-13", 9),
    _api(_K.OFFSET_COMMIT, groups, "2-10", 8),
    _api(_K.OFFSET_FETCH, groups, "1-10", 6),
    _api(_K.FIND_COORDINATOR, cluster, "0-6", 3),
    _api(_K.JOIN_GROUP, groups, "0-9", 6),
    _api(_K.HEARTBEAT, groups, "0-4", 4),
    _api(_K.LEAVE_GROUP, groups, "0-5", 4),
    _api(_K.SYNC_GROUP, groups, "0-5", 4),
    _api(_K.DESCRIBE_GROUPS, groups, "0-6", 5),
    _api(_K.LIST_GROUPS, groups, "0-5", 3),
    _api(_K.SASL_HANDSHAKE, security, "0-1", None),
    _api(_K.API_VERSIONS, cluster, "0-4", 3),
    _api(_K.CREATE_TOPICS, topics, "2-7", 5),
    _api(_K.DELETE_TOPICS, topics, "1-6", 4),
    _api(_K.DELETE_RECORDS, topics, "0-2", 2),
    _api(_K.INIT_PRODUCER_ID, transactions, "0-5", 2),
    _api(_K.OFFSET_FOR_LEADER_EPOCH, data, "2-4", 4),
    _api(_K.ADD_PARTITIONS_TO_TXN, transactions, "0-3", 3),
    _api(_K.ADD_OFFSETS_TO_TXN, transactions, "0-4", 3),
    _api(_K.END_TXN, transactions, "0-4", 3),
    _api(_K.TXN_OFFSET_COMMIT, transactions, "0-4", 3),
    _api(_K.DESCRIBE_ACLS, security, "1-3", 2),
    _api(_K.CREATE_ACLS, security, "1-3", 2),
    _api(_K.DELETE_ACLS, security, "1-3", 2),
    _api(_K.DESCRIBE_CONFIGS, topics, "1-4", 4),
    _api(_K.ALTER_CONFIGS, topics, "0-2", 2),
    _api(_K.DESCRIBE_LOG_DIRS, topics, "1-4", 2),
    _api(_K.SASL_AUTHENTICATE, security, "0-2", 2),
    _api(_K.CREATE_PARTITIONS, topics, "0-3", 2),
    _api(_K.DELETE_GROUPS, groups, "0-2", 2),
    _api(_K.INCREMENTAL_ALTER_CONFIGS, topics, "0-1", 1),
    _api(_K.OFFSET_DELETE, groups, "0-0", None),
    _api(_K.DESCRIBE_USER_SCRAM_CREDENTIALS, security, "0-0", 0),
    _api(_K.ALTER_USER_SCRAM_CREDENTIALS, security, "0-0", 0),
    _api(_K.DESCRIBE_CLUSTER, cluster, "0-2", 0),
    _api(_K.DESCRIBE_PRODUCERS, transactions, "0-0", 0),
    _api(_K.DESCRIBE_TRANSACTIONS, transactions, "0-0", 0),
    _api(_K.LIST_TRANSACTIONS, transactions, "0-1", 0),
    _api(_K.DESCRIBE_TOPIC_PARTITIONS, cluster, "0-0", 0),
)

OWN: Final = (
    # Kafka numbers its APIs upwards from 0; these begin at "br", where it will not be for long.
    _api(_K.COMMIT_BATCH, staging, "0-0", 0),
    _api(_K.ABORT_BATCH, staging, "0-0", 0),
    _api(_K.SINK_STATE, staging, "0-0", 0),
)
OWN_CLIENT: Final = "braidlog"
"""What a client calls itself, in ApiVersions, that is told of these."""

BY_KEY: Final = {int(api.key): api for api in (*APIS, *OWN)}
BY_REQUEST: Final = {api.request: api for api in (*APIS, *OWN)}

SECRETS: Final[dict[type[Message], tuple[str, ...]]] = {
    security.SaslAuthenticateRequest: ("auth_bytes",),
    security.SaslAuthenticateResponse: ("auth_bytes",),
    security.AlterUserScramCredentialsRequestUpsertion: ("salt", "salted_password"),
}
"""Message type, or part of one → attributes that no log shows."""
