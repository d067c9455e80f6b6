"""Response messages of the broker: one frozen type per shape, with the fields in wire order. `replies.py` encodes
them.

Invariant: clients split these lines at blanks, so no value may contain one, except in the three JSON responses.
"""

import msgspec

from braidlog.wire.cursus.batch import Batch

# --- lines: `OK key=value …`, in the order of the fields


class Ok(msgspec.Struct, frozen=True):
    """`OK` without fields."""


class Created(msgspec.Struct, frozen=True):
    topic: str
    partitions: int
    cleanup_policy: str = "delete"
    partitioner: str = "hash_key"
    auth_policy: str = "open"
    read_acl: str = ""
    write_acl: str = ""
    retention_hours: int = 0
    retention_bytes: int = 0


class Deleted(msgspec.Struct, frozen=True):
    topic: str
    deleted: bool = True


class TopicList(msgspec.Struct, frozen=True):
    count: int
    topics: tuple[str, ...] = ()


class TopicMetadata(msgspec.Struct, frozen=True):
    """One leader and one epoch per partition, in order; a leader is `host:port` and is never empty."""

    topic: str
    partitions: int
    leaders: tuple[str, ...]
    epochs: tuple[str, ...] = ()


class OffsetRange(msgspec.Struct, frozen=True):
    """`P<partition>:earliest=…:latest=…:leo=…:hwm=…`."""

    partition: int
    earliest: int
    latest: int
    leo: int
    hwm: int


class OffsetList(msgspec.Struct, frozen=True):
    topic: str
    partitions: int
    offsets: tuple[OffsetRange, ...] = ()


class Coordinator(msgspec.Struct, frozen=True):
    coordinator_id: str
    coordinator_type: str
    host: str
    port: int


class Registered(msgspec.Struct, frozen=True):
    group: str
    topic: str
    registered: bool = True


class Assignment(msgspec.Struct, frozen=True):
    """Exactly `OK generation=1 member=<id> assignments=[0 1 2]`: the assignments are last, separated by blanks."""

    generation: int
    member: str
    assignments: tuple[int, ...] = ()


class Beating(msgspec.Struct, frozen=True):
    member: str
    generation: int


class Left(msgspec.Struct, frozen=True):
    group: str
    member: str
    left: bool = True


class BatchCommitted(msgspec.Struct, frozen=True):
    batched: int


class CommittedOffset(msgspec.Struct, frozen=True):
    offset: int


class GroupList(msgspec.Struct, frozen=True):
    count: int
    groups: tuple[str, ...] = ()


class Appended(msgspec.Struct, frozen=True):
    version: int
    offset: int
    partition: int


class Version(msgspec.Struct, frozen=True):
    version: int


class SnapshotSaved(msgspec.Struct, frozen=True):
    version: int
    partition: int


class LeaderChosen(msgspec.Struct, frozen=True):
    """Leaders are node numbers; none is empty."""

    topic: str
    partition: int
    previous_leader: str
    leader: str
    leader_epoch: int
    changed: bool


class ProducerSession(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: str = msgspec.field(name="producerId")
    epoch: int


class TxnBegun(msgspec.Struct, frozen=True):
    transactional_id: str
    state: str
    producer_id: str = msgspec.field(name="producerId")
    epoch: int


class TxnStaged(msgspec.Struct, frozen=True):
    transactional_id: str
    staged_messages: int
    topic: str
    partition: int


class TxnOffsetsStaged(msgspec.Struct, frozen=True):
    transactional_id: str
    staged_offsets: int


class TxnState(msgspec.Struct, frozen=True):
    transactional_id: str
    state: str
    messages: int = 0
    offsets: int = 0


class Authenticated(msgspec.Struct, frozen=True):
    principal: str
    authenticated: bool = True


class CommandList(msgspec.Struct, frozen=True):
    commands: tuple[str, ...]


class ProtocolInfo(msgspec.Struct, frozen=True):
    protocol: str = "cursus"
    min_version: int = 1
    max_version: int = 1
    default_version: int = 1
    features: tuple[str, ...] = ()


# --- JSON


class Ack(msgspec.Struct, frozen=True):
    """The acknowledgement of a batch or a PUBLISH. `status` is OK, PARTIAL or ERROR."""

    status: str = ""
    last_offset: int = 0
    producer_epoch: int = 0
    producer_id: str = ""
    seq_start: int = 0
    seq_end: int = 0
    leader: str = ""
    error: str = ""


class PartitionDescription(msgspec.Struct, frozen=True):
    id: int
    leader: str = ""
    replicas: tuple[str, ...] = ()
    isr: tuple[str, ...] = ()
    leo: int = 0
    hwm: int = 0


class TopicDescription(msgspec.Struct, frozen=True):
    topic: str
    partitions: tuple[PartitionDescription, ...] = ()
    status: str = "OK"


class MemberDescription(msgspec.Struct, frozen=True):
    member_id: str
    last_heartbeat: str = ""
    assignments: tuple[int, ...] = ()


class GroupDescription(msgspec.Struct, frozen=True):
    """Times are RFC 3339 text."""

    group_name: str
    topic_name: str = ""
    state: str = ""
    generation: int = 0
    member_count: int = 0
    partition_count: int = 0
    members: tuple[MemberDescription, ...] = ()
    last_rebalance: str | msgspec.UnsetType = msgspec.UNSET
    status: str = "OK"


class Snapshot(msgspec.Struct, frozen=True):
    version: int
    payload: str


class SnapshotFound(msgspec.Struct, frozen=True):
    """`OK snapshot={"version":…,"payload":"…"}`, or `OK snapshot=null`."""

    snapshot: Snapshot | None = None


class BrokerStatus(msgspec.Struct, frozen=True):
    """`addr` and `client_addr` are equal: the nodes' internal port has no address for clients."""

    id: str
    addr: str = ""
    status: str = "active"
    client_addr: str = ""


class BrokerList(msgspec.Struct, frozen=True):
    """`OK brokers=[{"id":…},…]`."""

    brokers: tuple[BrokerStatus, ...]


class PartitionStatus(msgspec.Struct, frozen=True):
    """`key` is `topic-partition`; a partition without a leader has an empty leader."""

    key: str
    topic: str
    partition: int
    leader: str = ""
    leader_epoch: int = 0
    replicas: tuple[str, ...] = ()
    isr: tuple[str, ...] = ()
    expected_replicas: int = 0
    in_sync_replicas: int = 0
    min_in_sync_replicas: int = 0
    leader_available: bool = False
    under_replicated: bool = False
    min_isr_unsatisfied: bool = False
    healthy: bool = False


class ClusterStatus(msgspec.Struct, frozen=True):
    """`raft_leader` is the address of the metadata leader, `raft_applied_index` the applied metadata version."""

    raft_leader: str = ""
    raft_applied_index: int = 0
    broker_count: int = 0
    active_brokers: int = 0
    inactive_brokers: int = 0
    partition_count: int = 0
    leaderless_partitions: int = 0
    under_replicated_partitions: int = 0
    min_isr_unsatisfied_partitions: int = 0
    healthy: bool = False
    brokers: tuple[BrokerStatus, ...] = ()
    partitions: tuple[PartitionStatus, ...] = ()


class ClusterReport(msgspec.Struct, frozen=True):
    """`OK cluster={…}`."""

    cluster: ClusterStatus


class StreamContents(msgspec.Struct, frozen=True):
    """READ_STREAM's response, in two frames: a JSON envelope without the events, and the events as a batch."""

    topic: str
    key: str
    partition: int
    events: Batch
    snapshot: Snapshot | None = None


# --- pushed by STREAM


class KeepAlive(msgspec.Struct, frozen=True):
    """An empty frame, sent while there is nothing else to send. Clients disconnect after five seconds without a
    frame.
    """


class StreamControl(msgspec.Struct, frozen=True):
    """`STREAM_CONTROL type=CLOSE reason=… offset=N`, the last frame of a stream.

    Reasons: stopped, removed, timeout, error, offset_out_of_range. For the last one clients need `earliest` and `latest`.
    """

    type: str = "CLOSE"
    reason: str = ""
    offset: int | None = None
    requested: int | None = None
    earliest: int | None = None
    latest: int | None = None
