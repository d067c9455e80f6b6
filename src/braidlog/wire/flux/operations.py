"""The table of flux commands: arguments, answer, purpose and errors of each.

Invariant: reader, writer, the table in the documentation and the test parameters are derived from `OPERATIONS`. Add a
command by adding a row.

Sources: the Flux document, "Supported Commands" and "Command Payloads"; the Flux page, §8, for the cells that its
table lost (`[acks=0|1|all]`, `[assignor=round_robin|range]`, `<leader|follower>`), the BROKER_ and ADMIN_ commands
and the additive options.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import msgspec

from braidlog.model.limits import LONG_POLL_MS_MAX
from braidlog.wire.flux import messages as m
from braidlog.wire.flux.messages import ErrorCode
from braidlog.wire.flux.tokens import (
    I32_MAX,
    I64_MAX,
    I64_MIN,
    PAIR,
    TRUTH,
    Kind,
    bracketed,
    choice,
    comma_separated,
    constant,
    integer,
    name,
    read_pair,
)

WAIT_MS_MAX: Final = LONG_POLL_MS_MAX
"""Maximum wait that a CONSUME may request."""

REPLICAS_MAX: Final = 1_000
HOST_CHARS_MAX: Final = 255


class Place(StrEnum):
    """The place of an argument: required and optional ones by position, options as `word=value` in any order after
    them.
    """

    REQUIRED = "required"
    OPTIONAL = "optional"
    OPTION = "option"


class Argument(msgspec.Struct, frozen=True):
    """One argument of a command, or one `word=value` of an answer. An optional one may be missing.

    `field` is the message's field; a constant has none.
    """

    word: str
    kind: Kind
    field: str
    place: Place = Place.REQUIRED


class Operation(msgspec.Struct, frozen=True):
    """One command. `text`: the answer if it is a single word. `build`: makes a request whose words differ from its
    fields.
    """

    command: str
    request: type[m.Request]
    answer: type[m.Answer]
    arguments: tuple[Argument, ...]
    payload: tuple[Argument, ...]
    purpose: str
    errors: tuple[ErrorCode, ...] = ()
    text: str = ""
    build: Callable[..., m.Request] | None = None

    @property
    def name(self) -> str:
        return self.command

    @property
    def syntax(self) -> str:
        """The arguments in the notation of the document's table."""
        shapes = {
            Place.REQUIRED: lambda a: a.kind.shape if a.kind is PAIR else f"<{a.word}>",
            Place.OPTIONAL: lambda a: f"[{a.word}]",
            Place.OPTION: lambda a: f"[{a.word}={a.kind.shape}]",
        }
        return " ".join(shapes[argument.place](argument) for argument in self.arguments)


_NAME = name()
_ANY = integer(I64_MIN, I64_MAX)
_I32 = integer(0, I32_MAX)
_COUNT = integer(1, I32_MAX)
_OFFSET = integer(0, I64_MAX)  # a negative offset is BAD_REQUEST: the Flux page, §8
_IDS = bracketed(_I32)
_ROLE = choice(*m.Role)


def _needs(word: str, kind: Kind, field: str = "") -> Argument:
    return Argument(word, kind, field or word)


def _option(word: str, kind: Kind, field: str = "") -> Argument:
    return Argument(word, kind, field or word, Place.OPTION)


def _always(word: str, value: str) -> Argument:
    return Argument(word, constant(value.encode()), "")


_TOPIC = _needs("topic", _NAME)
_PARTITION = _needs("partition", _I32)
_MEMBER = (_needs("group", _NAME), _TOPIC, _needs("consumer_id", _NAME))
# Any integer is a well-formed generation: a negative one is stale and gives GENERATION_MISMATCH, not BAD_REQUEST.
_FENCED_MEMBER = (*_MEMBER, _needs("generation", _ANY))
_ASSIGNMENT = (_needs("generation", _ANY), _needs("assigned", _IDS))
_HW = _needs("hw", integer(-1, I64_MAX), "high_watermark")
_BROKER = _needs("broker_id", _I32)
_HOST = _needs("host", name(HOST_CHARS_MAX))
_PORT = _needs("port", integer(1, 65535))
_BASE64 = _option("enc", choice(m.Encoding.BASE64), "encoding")
_APPLIED = (_needs("term", _ANY), _needs("index", _ANY))
_COPIED = (_TOPIC, _PARTITION, _needs("follower", _I32, "follower_id"))
# Its encoding depends on the request's `enc`: records.py reads and writes it.
_RECORDS = Kind(bytes, bytes, "<offset:value,...>")
_STALE = (ErrorCode.GENERATION_MISMATCH,)


def build_produce(correlation_id: str, topic: str, pair: bytes, **options: Any) -> m.Produce:  # noqa: ANN401
    """Split `<key>:<value>`, one word, into two fields. Its encoding depends on `enc`, which follows it."""
    key, value = read_pair(pair, base64=options.get("encoding") is m.Encoding.BASE64)
    return m.Produce(correlation_id, topic, key, value, **options)


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "PRODUCE",
        m.Produce,
        m.Produced,
        (_TOPIC, _needs("key:value", PAIR, "pair"), _option("acks", choice(*m.Acks)), _BASE64),
        (_PARTITION, _needs("offset", _OFFSET), _HW),
        "append a record to the partition of its key",
        (ErrorCode.NOT_LEADER, ErrorCode.REPLICATION_TIMEOUT),
        build=build_produce,
    ),
    Operation(
        "CONSUME",
        m.Consume,
        m.Consumed,
        (
            _TOPIC,
            _PARTITION,
            _needs("offset", _OFFSET),
            _BASE64,
            _option("max", _COUNT, "records_max"),
            _option("wait_ms", integer(0, WAIT_MS_MAX)),
        ),
        (_needs("messages", _RECORDS, "records"), _HW),
        "read committed records from an offset",
    ),
    Operation(
        "JOIN",
        m.Join,
        m.Joined,
        (*_MEMBER, _option("assignor", choice(*m.Assignor))),
        _ASSIGNMENT,
        "join a group and get assigned partitions",
    ),
    Operation(
        "SYNC",
        m.Sync,
        m.Synced,
        _FENCED_MEMBER,
        _ASSIGNMENT,
        "validate the generation and fetch the latest assignment",
        _STALE,
    ),
    Operation(
        "HEARTBEAT",
        m.Heartbeat,
        m.HeartbeatAccepted,
        _FENCED_MEMBER,
        (_always("heartbeat", "ok"),),
        "keep membership alive for the session timeout",
        _STALE,
    ),
    Operation(
        "LEAVE",
        m.Leave,
        m.Left,
        _FENCED_MEMBER,
        (_always("left", "true"),),
        "leave the group and trigger a rebalance",
        _STALE,
    ),
    Operation(
        "COMMIT",
        m.Commit,
        m.Committed,
        (*_FENCED_MEMBER, _PARTITION, _needs("offset", _OFFSET)),
        (_always("committed", "true"),),
        "persist processed progress, validated by generation and assignment",
        _STALE,
    ),
    Operation(
        "OFFSET",
        m.ReadOffset,
        m.OffsetRead,
        (_needs("group", _NAME), _TOPIC, _PARTITION),
        # -1 is allowed: the protocol document does not say what a server answers without a committed offset.
        (_needs("offset", integer(-1, I64_MAX)),),
        "read committed progress",
    ),
    Operation(
        "REPLICA_FETCH",
        m.ReplicaFetch,
        m.ReplicaFetched,
        # Replica 0 is the leader. The highest number is the topic's replication factor less one, which the broker
        # checks.
        (_TOPIC, _PARTITION, _needs("replica_id", _COUNT), _needs("offset", _OFFSET)),
        (
            _needs("replica", _COUNT, "replica_id"),
            _needs("acked_offset", _OFFSET),
            _HW,
            _needs("isr", _IDS, "in_sync"),
            _needs("under_replicated", TRUTH),
        ),
        "report a follower's replication progress",
        (ErrorCode.NOT_LEADER,),
    ),
    Operation(
        "BROKER_FETCH",
        m.BrokerFetch,
        m.BrokerFetched,
        (
            _TOPIC,
            _PARTITION,
            _needs("follower_id", _I32),
            _needs("offset", _OFFSET),
            Argument("max_messages", _COUNT, "records_max", Place.OPTIONAL),
            _BASE64,
        ),
        (*_COPIED, _HW, _needs("records", _RECORDS)),
        "copy records of a partition, committed or not, to another broker",
        (ErrorCode.NOT_LEADER,),
    ),
    Operation(
        "BROKER_REPLICA_ACK",
        m.BrokerReplicaAck,
        m.BrokerReplicaAcked,
        (_TOPIC, _PARTITION, _needs("follower_id", _I32), _needs("acked_offset", _OFFSET, "offset")),
        (
            *_COPIED,
            _needs("acked_offset", _OFFSET),
            _HW,
            _needs("isr", _IDS, "in_sync"),
            _needs("under_replicated", TRUTH),
        ),
        "report how far another broker has copied a partition",
        (ErrorCode.NOT_LEADER,),
    ),
    Operation(
        "SET_PARTITION_ROLE",
        m.SetPartitionRole,
        m.PartitionRoleSet,
        (_TOPIC, _PARTITION, _needs("leader|follower", _ROLE, "role")),
        (_TOPIC, _PARTITION, _needs("role", _ROLE), _HW),
        "mark a partition leader or follower on this broker",
    ),
    Operation(
        "ADMIN_CREATE_TOPIC",
        m.CreateTopic,
        m.TopicCreated,
        (_TOPIC, _needs("partitions", _COUNT), _needs("replication_factor", _COUNT)),
        (_TOPIC, _needs("partitions", _COUNT), _needs("replication_factor", _COUNT), *_APPLIED),
        "create a topic",
    ),
    Operation(
        "ADMIN_REGISTER_BROKER",
        m.RegisterBroker,
        m.BrokerRegistered,
        (_BROKER, _HOST, _PORT, Argument("epoch", integer(0, I64_MAX), "epoch", Place.OPTIONAL)),
        (_BROKER, _HOST, _PORT, *_APPLIED),
        "register a broker and its address",
    ),
    Operation(
        "ADMIN_BROKER_HEARTBEAT",
        m.BrokerHeartbeat,
        m.BrokerHeartbeatAccepted,
        (_BROKER,),
        (_BROKER, _always("heartbeat", "ok"), *_APPLIED),
        "keep a broker alive",
    ),
    Operation(
        "ADMIN_RECONCILE_BROKER_HEALTH",
        m.ReconcileBrokerHealth,
        m.BrokerHealthReconciled,
        (_needs("timeout_ms", _COUNT),),
        (_needs("reconciled", _I32),),
        "fence the brokers without a heartbeat for this time",
    ),
    Operation(
        "ADMIN_FENCE_BROKER",
        m.FenceBroker,
        m.BrokerFenced,
        (_BROKER,),
        (_BROKER, _always("fenced", "true"), *_APPLIED),
        "fence a broker: it leads no partitions",
    ),
    Operation(
        "ADMIN_UNFENCE_BROKER",
        m.UnfenceBroker,
        m.BrokerUnfenced,
        (_BROKER,),
        (_BROKER, _always("fenced", "false"), *_APPLIED),
        "unfence a broker: it may lead partitions again",
    ),
    Operation(
        "ADMIN_SET_PARTITION_LEADER",
        m.SetPartitionLeader,
        m.PartitionLeaderSet,
        (_TOPIC, _PARTITION, _needs("leader", _I32), _needs("isr_csv", comma_separated(_I32, REPLICAS_MAX), "in_sync")),
        (_TOPIC, _PARTITION, _needs("leader", _I32), _needs("isr", _IDS, "in_sync"), *_APPLIED),
        "move a partition's leadership",
    ),
    Operation(
        "ADMIN_ELECT_TOPIC_LEADERS",
        m.ElectTopicLeaders,
        m.LeadersChanged,
        (_TOPIC,),
        (_TOPIC, _needs("elected_changes", _I32)),
        "elect the preferred leader of each partition of a topic",
    ),
    Operation(
        "ADMIN_GET_METADATA",
        m.GetMetadata,
        m.Metadata,
        (),
        (
            _needs("topics", bracketed(_NAME)),
            _needs("brokers", _IDS),
            Argument("fenced", _IDS, "fenced", Place.OPTIONAL),
        ),
        "list topics and brokers",
    ),
    Operation("PING", m.Ping, m.Pong, (), (), "check that the broker responds", text="pong"),
)

BY_COMMAND: Final = {operation.command.encode(): operation for operation in OPERATIONS}
BY_REQUEST: Final = {operation.request: operation for operation in OPERATIONS}
