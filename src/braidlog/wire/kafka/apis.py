"""The table of APIs: numbers, versions, and the first flexible version of each.

`messages/` has their fields; the adapter decides which APIs a node serves.
Invariant: a key, a request type and a response type each occur in one row only. ApiVersions, the page in
docs/dialects and the test parameters are derived from this table. braidlog's own APIs are separate: only its own
client sees them.
"""

from enum import IntEnum
from types import ModuleType
from typing import Final, Self

import msgspec

from braidlog.wire.kafka.messages import (
    calls,
    cluster,
    consumer_groups,
    counting,
    data,
    groups,
    nodes,
    placement,
    security,
    staging,
    topics,
    transactions,
)
from braidlog.wire.kafka.rows import Message, Span, span_of

OFFSETS_TOPIC_ID: Final = b"__consumer_offse"
"""The name shown as `__consumer_offsets`, which is not a topic: the common prefix of its names on all nodes."""

FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
"""Maximum frame without its length field: the default of Kafka's brokers."""

SMALL_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum request without records. Names and numbers take about ten times their size in memory."""

CALL_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum request that one node forwards to another: the largest frame of its protocol, and its envelope."""

PARTS_MAX: Final = 10_000
"""Maximum array items of a request, in total. Work for each item delays all other clients."""

PARTITION_PARTS_MAX: Final = 41_000
"""The same for requests that name partitions: 20,000 of them, each in its own topic."""


class Key(IntEnum):
    """An API: its number on the wire, the module of its messages, its versions, and the first flexible one.

    Kafka numbers its APIs upwards from 0; braidlog's own start at "br", far above. Versions 0 to 2 of Produce have
    obsolete message formats and are not served. librdkafka before 2.11 does not compress unless version 0 is
    advertised, so it is (the last column).
    """

    messages: ModuleType
    versions: Span
    flexible_since: int | None
    advertised_first: int

    def __new__(
        cls,
        number: int,
        messages: ModuleType,
        versions: str,
        flexible_since: int | None,
        advertised_first: int | None = None,
    ) -> Self:
        key = int.__new__(cls, number)
        key._value_ = number
        key.messages, key.versions, key.flexible_since = messages, span_of(versions), flexible_since
        key.advertised_first = key.versions.first if advertised_first is None else advertised_first
        return key

    PRODUCE = 0, data, "3-13", 9, 0
    FETCH = 1, data, "4-18", 12
    LIST_OFFSETS = 2, data, "1-11", 6
    METADATA = 3, cluster, "0-13", 9
    OFFSET_COMMIT = 8, groups, "2-10", 8
    OFFSET_FETCH = 9, groups, "1-10", 6
    FIND_COORDINATOR = 10, cluster, "0-6", 3
    JOIN_GROUP = 11, groups, "0-9", 6
    HEARTBEAT = 12, groups, "0-4", 4
    LEAVE_GROUP = 13, groups, "0-5", 4
    SYNC_GROUP = 14, groups, "0-5", 4
    DESCRIBE_GROUPS = 15, groups, "0-6", 5
    LIST_GROUPS = 16, groups, "0-5", 3
    SASL_HANDSHAKE = 17, security, "0-1", None
    API_VERSIONS = 18, cluster, "0-4", 3
    CREATE_TOPICS = 19, topics, "2-7", 5
    DELETE_TOPICS = 20, topics, "1-6", 4
    DELETE_RECORDS = 21, topics, "0-2", 2
    INIT_PRODUCER_ID = 22, transactions, "0-5", 2
    OFFSET_FOR_LEADER_EPOCH = 23, data, "2-4", 4
    ADD_PARTITIONS_TO_TXN = 24, transactions, "0-3", 3
    ADD_OFFSETS_TO_TXN = 25, transactions, "0-4", 3
    END_TXN = 26, transactions, "0-5", 3
    WRITE_TXN_MARKERS = 27, transactions, "1-1", 1
    TXN_OFFSET_COMMIT = 28, transactions, "0-5", 3
    DESCRIBE_ACLS = 29, security, "1-3", 2
    CREATE_ACLS = 30, security, "1-3", 2
    DELETE_ACLS = 31, security, "1-3", 2
    DESCRIBE_CONFIGS = 32, topics, "1-4", 4
    ALTER_CONFIGS = 33, topics, "0-2", 2
    DESCRIBE_LOG_DIRS = 35, topics, "1-4", 2
    SASL_AUTHENTICATE = 36, security, "0-2", 2
    CREATE_PARTITIONS = 37, topics, "0-3", 2
    DELETE_GROUPS = 42, groups, "0-2", 2
    ELECT_LEADERS = 43, placement, "0-2", 2
    INCREMENTAL_ALTER_CONFIGS = 44, topics, "0-1", 1
    ALTER_PARTITION_REASSIGNMENTS = 45, placement, "0-1", 0
    LIST_PARTITION_REASSIGNMENTS = 46, placement, "0-0", 0
    OFFSET_DELETE = 47, groups, "0-0", None
    DESCRIBE_CLIENT_QUOTAS = 48, security, "0-1", 1
    ALTER_CLIENT_QUOTAS = 49, security, "0-1", 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, security, "0-0", 0
    ALTER_USER_SCRAM_CREDENTIALS = 51, security, "0-0", 0
    DESCRIBE_QUORUM = 55, placement, "0-2", 0
    DESCRIBE_CLUSTER = 60, cluster, "0-2", 0
    DESCRIBE_PRODUCERS = 61, transactions, "0-0", 0
    UNREGISTER_BROKER = 64, placement, "0-0", 0
    DESCRIBE_TRANSACTIONS = 65, transactions, "0-0", 0
    LIST_TRANSACTIONS = 66, transactions, "0-1", 0
    CONSUMER_GROUP_HEARTBEAT = 68, consumer_groups, "0-1", 0
    CONSUMER_GROUP_DESCRIBE = 69, consumer_groups, "0-1", 0
    LIST_CONFIG_RESOURCES = 74, topics, "0-1", 0
    DESCRIBE_TOPIC_PARTITIONS = 75, cluster, "0-0", 0
    COMMIT_BATCH = 0x6272, staging, "0-0", 0
    ABORT_BATCH = 0x6273, staging, "0-0", 0
    SINK_STATE = 0x6274, staging, "0-0", 0
    CLUSTER_EVENTS = 0x6275, nodes, "0-0", 0
    DRAIN_NODE = 0x6276, nodes, "0-0", 0
    CALL = 0x6277, calls, "0-0", 0
    BACKUP_SNAPSHOT = 0x6278, nodes, "0-0", 0
    COUNT_RECORDS = 0x6279, counting, "0-0", 0
    DESCRIBE_NODE = 0x627C, nodes, "0-0", 0


NAMING_PARTITIONS: Final = frozenset(
    {
        *(Key.PRODUCE, Key.FETCH, Key.LIST_OFFSETS, Key.METADATA, Key.OFFSET_COMMIT, Key.OFFSET_FETCH),
        *(Key.DELETE_RECORDS, Key.OFFSET_FOR_LEADER_EPOCH, Key.DESCRIBE_LOG_DIRS, Key.DESCRIBE_PRODUCERS),
        *(Key.ADD_PARTITIONS_TO_TXN, Key.TXN_OFFSET_COMMIT, Key.OFFSET_DELETE, Key.COMMIT_BATCH, Key.ABORT_BATCH),
        *(Key.CREATE_TOPICS, Key.DELETE_TOPICS, Key.CREATE_PARTITIONS, Key.DESCRIBE_TOPIC_PARTITIONS),
        *(
            Key.CONSUMER_GROUP_HEARTBEAT,
            Key.COUNT_RECORDS,
            Key.ELECT_LEADERS,
            Key.ALTER_PARTITION_REASSIGNMENTS,
            Key.LIST_PARTITION_REASSIGNMENTS,
        ),
    }
)
_BYTES_MAX: Final = {Key.PRODUCE: FRAME_BYTES_MAX, Key.CALL: CALL_BYTES_MAX}


class Api(msgspec.Struct, frozen=True):
    """One row: a request, its response, and their versions."""

    key: Key
    name: str
    request: type[Message]
    response: type[Message]
    versions: Span
    flexible_since: int | None

    @property
    def advertised(self) -> Span:
        """The versions that ApiVersions returns."""
        return Span(self.key.advertised_first, self.versions.last)

    @property
    def request_bytes_max(self) -> int:
        return _BYTES_MAX.get(self.key, SMALL_BYTES_MAX)

    @property
    def request_parts_max(self) -> int:
        return PARTITION_PARTS_MAX if self.key in NAMING_PARTITIONS else PARTS_MAX

    def is_flexible(self, version: int) -> bool:
        return self.flexible_since is not None and version >= self.flexible_since

    def response_header_is_flexible(self, version: int) -> bool:
        # A client that requests versions does not know yet which header a server writes: this response always has the
        # old one.
        return self.is_flexible(version) and self.key is not Key.API_VERSIONS


def _api(key: Key) -> Api:
    """Derive the types from the key: FIND_COORDINATOR has FindCoordinatorRequest and its response."""
    name = key.name.title().replace("_", "")
    request, response = getattr(key.messages, f"{name}Request"), getattr(key.messages, f"{name}Response")
    return Api(key, name, request, response, key.versions, key.flexible_since)


_OURS: Final = (staging, nodes, counting)
APIS: Final = tuple(_api(key) for key in Key if key.messages not in (*_OURS, calls))
OWN: Final = tuple(_api(key) for key in Key if key.messages in _OURS)
OWN_CLIENT: Final = "braidlog"
"""The client software name, in ApiVersions, that is shown these APIs."""

CALL: Final = _api(Key.CALL)
"""Between nodes only; not served to clients."""

OPERATIONS: Final = (*APIS, *OWN)
BY_KEY: Final = {int(api.key): api for api in OPERATIONS}
BY_REQUEST: Final = {api.request: api for api in OPERATIONS}

SECRETS: Final[dict[type[Message], tuple[str, ...]]] = {
    security.SaslAuthenticateRequest: ("auth_bytes",),
    security.SaslAuthenticateResponse: ("auth_bytes",),
    security.AlterUserScramCredentialsRequestUpsertion: ("salt", "salted_password"),
}
"""Message type, or part of one → attributes that no log shows."""
