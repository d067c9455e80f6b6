"""The table of operations: each command, its request, its answers, its purpose and its errors.

Invariant: reader, writer, the page `docs/dialects/cursus.md` and the tests are derived from OPERATIONS; a request
without a row does not exist. It also has the order of the document's positional arguments.
"""

from typing import Any

import msgspec

from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import Batch, Spelling
from braidlog.wire.cursus.failures import ErrorCode as E

BATCH = "0xBA7C"
"""The name of the row of binary batches; no text command can have it."""


class Operation(msgspec.Struct, frozen=True):
    """One row. `positional` is the document's order of arguments, None if the protocol document does not have the
    command.

    `bare` names the argument that may be given without its key among `key=value` words.
    """

    name: str
    request: type
    answers: tuple[type, ...]
    purpose: str
    positional: tuple[str, ...] | None = None
    bare: str | None = None
    errors: tuple[E, ...] = ()


class Request(msgspec.Struct, frozen=True):
    """A received request: the message, and the spelling its answer must have."""

    operation: Operation
    message: Any
    spelling: Spelling
    credentials: r.Credentials | None = None


_TOPIC = (E.TOPIC_NOT_FOUND,)
_LOG = (E.TOPIC_NOT_FOUND, E.PARTITION_NOT_FOUND, E.NOT_LEADER)
_READ = (*_LOG, E.OFFSET_OUT_OF_RANGE)
_WRITE = (
    *_LOG,
    E.INVALID_ACKS,
    E.STALE_PRODUCER_EPOCH,
    E.IDEMPOTENCY_GAP,
    E.RECORD_TOO_LARGE,
    E.NOT_ENOUGH_REPLICAS,
    E.TIMED_OUT,
)
_MEMBER = (E.NOT_COORDINATOR, E.GROUP_NOT_FOUND, E.MEMBER_NOT_FOUND, E.GEN_MISMATCH)
_MEMBERS_READ = (*_READ, *_MEMBER[1:], E.NOT_OWNER)
_FENCED = (*_MEMBER, E.NOT_OWNER, E.OFFSET_REGRESSION)
_STREAMS = (*_TOPIC, E.NOT_LEADER, E.EVENT_SOURCING_NOT_ENABLED)
_TXN = (E.NOT_COORDINATOR, E.TRANSACTION_NOT_FOUND, E.INVALID_TRANSACTION_STATE, E.STALE_PRODUCER_EPOCH)

OPERATIONS: tuple[Operation, ...] = (
    Operation(BATCH, Batch, (a.Ack, a.Ok), "append a batch of records", errors=_WRITE),
    Operation(
        "CREATE",
        r.Create,
        (a.Created,),
        "create a topic, or change the settings of an existing one",
        ("topic", "partitions"),
        errors=(E.INVALID_TOPIC, E.INVALID_PARTITIONS, E.CREATE_TOPIC_FAILED),
    ),
    Operation("DELETE", r.Delete, (a.Deleted,), "delete a topic and its records", ("topic",), errors=_TOPIC),
    Operation("LIST", r.ListTopics, (a.TopicList,), "list topics", ()),
    Operation(
        "CONSUME",
        r.Consume,
        (Batch,),
        "read records from an offset on",
        ("topic", "partition", "offset"),
        errors=_MEMBERS_READ,
    ),
    Operation(
        "SUBSCRIBE", r.Subscribe, (a.Registered,), "register a group for a topic", ("topic", "group"), errors=_TOPIC
    ),
    Operation(
        "JOIN_GROUP",
        r.JoinGroup,
        (a.Assignment,),
        "join a group",
        ("topic", "group", "member"),
        errors=(*_TOPIC, E.NOT_COORDINATOR),
    ),
    Operation(
        "LEAVE_GROUP",
        r.LeaveGroup,
        (a.Left,),
        "leave a group",
        ("topic", "group", "member", "generation"),
        errors=_MEMBER,
    ),
    Operation(
        "STREAM",
        r.Stream,
        (Batch, a.KeepAlive, a.StreamControl),
        "push records from an offset on; pushed frames only, no answer",
        ("topic", "partition", "offset"),
        errors=_MEMBERS_READ,
    ),
    Operation(
        "COMMIT",
        r.Commit,
        (a.Ok,),
        "commit an offset, without membership",
        ("topic", "group", "partition", "offset"),
        errors=(*_LOG, E.OFFSET_REGRESSION),
    ),
    Operation(
        "HEARTBEAT",
        r.Heartbeat,
        (a.Beating,),
        "keep the membership alive",
        ("topic", "group", "consumer", "member", "generation"),
        errors=(*_MEMBER, E.REBALANCE_REQUIRED),
    ),
    Operation(
        "BATCH_COMMIT",
        r.BatchCommit,
        (a.BatchCommitted,),
        "commit offsets of several partitions, all or none",
        ("topic", "group", "member", "generation", "offsets"),
        "offsets",
        errors=_FENCED,
    ),
    Operation(
        "SYNC_GROUP",
        r.SyncGroup,
        (a.Assignment,),
        "get the assignment of a generation",
        ("topic", "group", "member", "generation"),
        errors=(*_MEMBER, E.REBALANCE_REQUIRED),
    ),
    Operation("PUBLISH", r.Publish, (a.Ack, a.Ok), "append one record", errors=_WRITE),
    Operation(
        "DESCRIBE", r.Describe, (a.TopicDescription,), "describe a topic's partitions and replicas", errors=_TOPIC
    ),
    Operation("METADATA", r.GetMetadata, (a.TopicMetadata,), "get the leader of each partition", errors=_TOPIC),
    Operation("LIST_OFFSETS", r.ListOffsets, (a.OffsetList,), "list the offsets of partitions", errors=_LOG),
    Operation(
        "FIND_COORDINATOR", r.FindCoordinator, (a.Coordinator,), "find the coordinator of a group or a transactional id"
    ),
    Operation("LIST_CLUSTER", r.ListCluster, (a.BrokerList,), "list the nodes", errors=(E.DISTRIBUTION_NOT_ENABLED,)),
    Operation(
        "CLUSTER_STATUS",
        r.GetClusterStatus,
        (a.ClusterReport,),
        "list the nodes and the leader of each partition",
        errors=(E.DISTRIBUTION_REQUIRED,),
    ),
    Operation(
        "ELECT_LEADER",
        r.ElectLeader,
        (a.LeaderChosen,),
        "elect an in-sync replica as a partition's leader",
        errors=(E.DISTRIBUTION_REQUIRED, E.TOPIC_NOT_FOUND, E.PARTITION_NOT_FOUND, E.LEADER_ELECTION_REJECTED),
    ),
    Operation(
        "REGISTER_GROUP", r.RegisterGroup, (a.Registered,), "register a group before its first member", errors=_TOPIC
    ),
    Operation("LIST_GROUPS", r.ListGroups, (a.GroupList,), "list groups", errors=(E.NOT_COORDINATOR,)),
    Operation(
        "GROUP_STATUS", r.GroupStatus, (a.GroupDescription,), "describe a group's members", errors=(E.GROUP_NOT_FOUND,)
    ),
    Operation(
        "FETCH_OFFSET", r.FetchOffset, (a.CommittedOffset,), "get a group's committed offset, 0 if none", errors=_LOG
    ),
    Operation("COMMIT_OFFSET", r.CommitOffset, (a.Ok,), "commit an offset", errors=_FENCED),
    Operation(
        "APPEND_STREAM",
        r.AppendStream,
        (a.Appended,),
        "append an event, if the stream is at the version before it",
        errors=(*_STREAMS, E.VERSION_CONFLICT),
    ),
    Operation("READ_STREAM", r.ReadStream, (a.StreamContents,), "read a stream's events and snapshot", errors=_STREAMS),
    Operation("STREAM_VERSION", r.StreamVersion, (a.Version,), "get a stream's version, 0 if none", errors=_STREAMS),
    Operation(
        "SAVE_SNAPSHOT",
        r.SaveSnapshot,
        (a.SnapshotSaved,),
        "save a snapshot of a stream at a version",
        errors=(*_STREAMS, E.SNAPSHOT_VERSION_EXCEEDS_STREAM),
    ),
    Operation("READ_SNAPSHOT", r.ReadSnapshot, (a.SnapshotFound,), "read the newest snapshot", errors=_STREAMS),
    Operation(
        "INIT_PRODUCER_ID",
        r.InitProducerId,
        (a.ProducerSession,),
        "get a producer id and epoch; older holders are fenced",
        errors=(E.NOT_COORDINATOR, E.INVALID_TRANSACTION_STATE),
    ),
    Operation("BEGIN_TXN", r.BeginTxn, (a.TxnBegun,), "begin a transaction", errors=_TXN),
    Operation(
        "TXN_PUBLISH",
        r.TxnPublish,
        (a.TxnStaged,),
        "add a record to a transaction",
        errors=(*_TXN, *_LOG, E.IDEMPOTENCY_GAP),
    ),
    Operation(
        "SEND_OFFSETS_TO_TXN",
        r.SendOffsetsToTxn,
        (a.TxnOffsetsStaged,),
        "add a group's offsets to a transaction",
        bare="offsets",
        errors=(*_TXN, *_FENCED[1:]),
    ),
    Operation("END_TXN", r.EndTxn, (a.TxnState,), "commit or abort a transaction", errors=_TXN),
    Operation("TXN_STATUS", r.TxnStatus, (a.TxnState,), "get a transaction's state", errors=_TXN[:2]),
    Operation("AUTH", r.Auth, (a.Authenticated,), "authenticate", errors=(E.AUTHENTICATION_FAILED,)),
    Operation("HELP", r.Help, (a.CommandList,), "list all commands"),
    Operation("PROTOCOL_INFO", r.GetProtocolInfo, (a.ProtocolInfo,), "describe the protocol"),
    Operation("EXIT", r.Exit, (a.Ok,), "close the connection after the answer"),
)

BY_NAME: dict[bytes, Operation] = {row.name.encode(): row for row in OPERATIONS if row.name != BATCH}
BY_REQUEST: dict[type, Operation] = {row.request: row for row in OPERATIONS}
EVERYWHERE: tuple[E, ...] = (
    E.EMPTY_COMMAND,
    E.UNKNOWN_COMMAND,
    E.MALFORMED_INPUT,
    E.DECODE_FAILED,
    E.FRAME_TOO_LARGE,
    E.UNEXPECTED_ARGUMENT,
    E.DUPLICATE_ARGUMENT,
    E.INVALID_AUTH,
    E.AUTHENTICATION_REQUIRED,
    E.NOT_AUTHORIZED_FOR_TOPIC,
    E.NOT_AUTHORIZED_FOR_OPERATION,
    E.COMMAND_FAILED,
)
"""Errors that every operation may return."""

SECRETS: dict[type, tuple[str, ...]] = {r.Auth: ("token",), r.Credentials: ("token",)}
"""Message type → attributes that logs never show."""
