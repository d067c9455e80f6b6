"""The messages of the mayfly dialect, its statuses and its limits.

`fields.py` encodes them, `operations.py` pairs requests with answers. Requests have the names of the document's
commands. EXISTS, EXPIRE, TTL, SCAN and LLEN are braidlog's additions: the document ends its groups with dots.
"""

from enum import IntEnum
from typing import Final

import msgspec

TOKEN_BYTES_MAX: Final = 1024
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum bytes of an answer's payload."""
MANY_BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes of the payload of a command with several values."""
U32_MAX: Final = 2**32 - 1


class Status(IntEnum):
    """The status byte of an answer. 0 is not used: uninitialized memory must not look like an answer."""

    OK = 0x01
    NOT_FOUND = 0x02
    UNKNOWN_CMD = 0x03
    BAD_PAYLOAD = 0x04
    KEY_TOO_LONG = 0x05
    VALUE_TOO_LARGE = 0x06
    SERVER_ERROR = 0x07
    AUTH_REQUIRED = 0x08
    AUTH_FAILED = 0x09
    WRONG_TYPE = 0x0A
    OUT_OF_MEMORY = 0x0B
    TIMEOUT = 0x0C
    UNSUPPORTED_VERSION = 0x0D
    MOVED = 0x10
    TOPOLOGY_CHANGED = 0x11


class Consistency(IntEnum):
    """How many replicas must agree: the thirteenth byte of a version 2 header. Version 1 means QUORUM."""

    ONE = 1
    QUORUM = 2
    ALL = 3


class Condition(IntEnum):
    """When a SET takes effect: an option that the protocol document does not have."""

    ALWAYS = 0
    IF_ABSENT = 1
    IF_PRESENT = 2


class NodeState(IntEnum):
    ALIVE = 1
    SUSPECT = 2
    DEAD = 3
    LEAVING = 4


class Message(msgspec.Struct, frozen=True, gc=False):
    """Base of all requests and answers: they hold bytes and numbers without reference cycles."""


# ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Auth(Message, frozen=True):
    token: bytes

    def __repr__(self) -> str:
        return "Auth(token=<hidden>)"


class Set(Message, frozen=True):
    """`ttl_seconds` 0: the key does not expire."""

    key: bytes
    value: bytes
    ttl_seconds: int = 0
    condition: Condition = Condition.ALWAYS


class Get(Message, frozen=True):
    key: bytes


class Del(Message, frozen=True):
    key: bytes


class Ping(Message, frozen=True):
    pass


class Quit(Message, frozen=True):
    pass


class Exists(Message, frozen=True):
    key: bytes


class Expire(Message, frozen=True):
    """`ttl_seconds` 0: the key no longer expires."""

    key: bytes
    ttl_seconds: int


class Ttl(Message, frozen=True):
    key: bytes


class Scan(Message, frozen=True):
    """List keys with this `prefix` of one slot (0 if keys have no slots): at most `count`, from a `position` on. The
    first position is 0, then that of the previous answer, with its `after`.
    """

    slot: int
    position: int
    after: bytes
    prefix: bytes
    count: int


class LPush(Message, frozen=True):
    """Values are pushed one by one: the last becomes the first of the list."""

    key: bytes
    values: tuple[bytes, ...]


class RPush(Message, frozen=True):
    key: bytes
    values: tuple[bytes, ...]


class LPop(Message, frozen=True):
    key: bytes


class RPop(Message, frozen=True):
    key: bytes


class LRange(Message, frozen=True):
    """From `start` to `stop`, both inclusive, counted from 0. Negative numbers count from the end, -1 is the last."""

    key: bytes
    start: int
    stop: int


class LLen(Message, frozen=True):
    key: bytes


class Incr(Message, frozen=True):
    key: bytes


class Decr(Message, frozen=True):
    key: bytes


class IncrBy(Message, frozen=True):
    key: bytes
    delta: int


class HSet(Message, frozen=True):
    key: bytes
    pairs: tuple[tuple[bytes, bytes], ...]


class HGet(Message, frozen=True):
    key: bytes
    field: bytes


class HDel(Message, frozen=True):
    key: bytes
    fields: tuple[bytes, ...]


class HGetAll(Message, frozen=True):
    key: bytes


class Snapshot(Message, frozen=True):
    pass


class Memory(Message, frozen=True):
    pass


class Stats(Message, frozen=True):
    pass


class ClusterInfo(Message, frozen=True):
    pass


class ClusterNodes(Message, frozen=True):
    pass


class Leave(Message, frozen=True):
    pass


# ── Answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Done(Message, frozen=True):
    """OK without a body."""


class Value(Message, frozen=True):
    value: bytes


class Number(Message, frozen=True):
    number: int


class Length(Message, frozen=True):
    length: int


class Stored(Message, frozen=True):
    """The answer to SET. False: its condition did not hold, and nothing was written."""

    stored: bool = True


class Count(Message, frozen=True):
    """The number of fields that were added, or removed."""

    count: int


class TimeLeft(Message, frozen=True):
    """Seconds, rounded up; 0: the key does not expire."""

    ttl_seconds: int


class Values(Message, frozen=True):
    values: tuple[bytes, ...]


class Names(Message, frozen=True):
    """The answer to SCAN. `position` 0: the slot has no more keys."""

    slots: int
    """The number of slots; 1 if keys have no slots."""
    position: int
    after: bytes
    """The last key that was scanned, listed or not; empty if the client may not see it."""
    names: tuple[bytes, ...]


class Pairs(Message, frozen=True):
    pairs: tuple[tuple[bytes, bytes], ...]


class Node(Message, frozen=True):
    name: str
    state: NodeState
    host: str
    port: int


class Nodes(Message, frozen=True):
    nodes: tuple[Node, ...]


class SnapshotTaken(Message, frozen=True):
    """A durable snapshot. Counts that a server does not send are None, here and below."""

    sequence: int | None = None
    keys: int | None = None
    bytes: int | None = None
    taken_ms: int | None = None
    wal_bytes_freed: int | None = None


class MemoryUse(Message, frozen=True):
    """`limit_bytes` 0: no limit."""

    used_bytes: int | None = None
    limit_bytes: int | None = None
    peak_bytes: int | None = None
    keys: int | None = None
    resident_bytes: int | None = None


class Statistics(Message, frozen=True):
    """Counts since the node started; `sequence` counts mutations since the store was created."""

    uptime_seconds: int | None = None
    keys: int | None = None
    keys_with_ttl: int | None = None
    strings: int | None = None
    lists: int | None = None
    hashes: int | None = None
    operations: int | None = None
    hits: int | None = None
    misses: int | None = None
    mutations: int | None = None
    expired: int | None = None
    evicted: int | None = None
    refused_for_memory: int | None = None
    sequence: int | None = None
    durable_sequence: int | None = None
    feed_sequence: int | None = None
    wal_bytes: int | None = None
    wal_files: int | None = None
    snapshots: int | None = None
    snapshot_sequence: int | None = None
    snapshot_taken_ms: int | None = None


class ClusterState(Message, frozen=True):
    mode: str | None = None
    node: str | None = None
    nodes: int | None = None
    epoch: int | None = None


class Failure(Message, frozen=True):
    """Any status except OK, MOVED and TOPOLOGY_CHANGED. The status is complete; the message is for people."""

    status: Status
    message: str = ""


class Moved(Message, frozen=True):
    """Another node has the key: send the request there. An address is IPv4 or IPv6, text here and bytes on the wire."""

    host: str
    port: int


class TopologyChanged(Message, frozen=True):
    """The nodes disagree about the key's owner: refresh the topology. `epoch` is that of the answering node."""

    epoch: int | None = None
    message: str = ""


MISSING: Final = Failure(Status.NOT_FOUND)
DONE: Final = Done()
STORED: Final = Stored()
