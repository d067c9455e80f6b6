"""The table of commands: number, answer and statuses of each. Readers, writers, the page in docs/dialects and the
tests are derived from it.

Invariant: a request type and a number each occur in one row only. The high nibble of a number is its group; 0x4_ is
free.
"""

from typing import Any, Final

import msgspec

from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.fields import payload_bytes_max
from braidlog.wire.mayfly.messages import Status as S  # noqa: N817 - a column of the table

GROUPS: Final = {0x0: "core", 0x1: "lists", 0x2: "counters", 0x3: "hashes", 0x5: "administration", 0x6: "cluster"}

EVERYWHERE: Final = (S.BAD_PAYLOAD, S.SERVER_ERROR, S.AUTH_REQUIRED)
"""Statuses that any command may return. A cluster adds TIMEOUT, MOVED and TOPOLOGY_CHANGED."""

CONNECTION: Final = (S.UNKNOWN_CMD, S.UNSUPPORTED_VERSION)
"""Statuses for a frame that is not a command."""

CLUSTERED: Final = (S.TIMEOUT, S.MOVED, S.TOPOLOGY_CHANGED)
"""Statuses that only a node of a cluster returns."""


class Operation(msgspec.Struct, frozen=True):
    """One row: a command, its answer, and its statuses beyond `EVERYWHERE`."""

    number: int
    request: type[m.Message]
    answer: type[m.Message]
    purpose: str
    statuses: tuple[S, ...] = ()

    @property
    def name(self) -> str:
        return NAMES[self.number]

    @property
    def group(self) -> str:
        return GROUPS[self.number >> 4]

    @property
    def payload_bytes_max(self) -> int:
        return payload_bytes_max(self.request)


NAMES: Final = {
    0x00: "AUTH", 0x01: "SET", 0x02: "GET", 0x03: "DEL", 0x04: "PING", 0x05: "QUIT", 0x06: "EXISTS", 0x07: "EXPIRE", 0x08: "TTL",
    0x09: "SCAN",
    0x10: "LPUSH", 0x11: "RPUSH", 0x12: "LPOP", 0x13: "RPOP", 0x14: "LRANGE", 0x15: "LLEN",
    0x20: "INCR", 0x21: "DECR", 0x22: "INCRBY",
    0x30: "HSET", 0x31: "HGET", 0x32: "HDEL", 0x33: "HGETALL",
    0x50: "SNAPSHOT", 0x51: "MEMORY", 0x52: "STATS",
    0x60: "CLUSTER_INFO", 0x61: "CLUSTER_NODES", 0x62: "LEAVE",
}  # fmt: skip

_KEPT = (S.KEY_TOO_LONG, S.VALUE_TOO_LARGE, S.OUT_OF_MEMORY)
_THERE = (S.KEY_TOO_LONG, S.NOT_FOUND)
_READ = (S.KEY_TOO_LONG, S.NOT_FOUND, S.WRONG_TYPE)
_COUNTED = (S.KEY_TOO_LONG, S.WRONG_TYPE, S.VALUE_TOO_LARGE, S.OUT_OF_MEMORY)

OPERATIONS: Final = (
    Operation(0x00, m.Auth, m.Done, "authenticate, before any other command", (S.AUTH_FAILED,)),
    Operation(0x01, m.Set, m.Stored, "set a key to a string", _KEPT),
    Operation(0x02, m.Get, m.Value, "get the value of a string or a counter", _READ),
    Operation(0x03, m.Del, m.Done, "delete a key", _THERE),
    Operation(0x04, m.Ping, m.Done, "check that the node responds"),
    Operation(0x05, m.Quit, m.Done, "close the connection after the answer"),
    Operation(0x06, m.Exists, m.Done, "check that a key exists", _THERE),
    Operation(0x07, m.Expire, m.Done, "set a key's TTL in seconds; 0: never expire", _THERE),
    Operation(0x08, m.Ttl, m.TimeLeft, "get a key's TTL in seconds, rounded up; 0: never expires", _THERE),
    Operation(0x09, m.Scan, m.Names, "list keys, page by page", (S.KEY_TOO_LONG,)),
    Operation(0x10, m.LPush, m.Length, "prepend values to a list, one by one", (*_KEPT, S.WRONG_TYPE)),
    Operation(0x11, m.RPush, m.Length, "append values to a list", (*_KEPT, S.WRONG_TYPE)),
    Operation(0x12, m.LPop, m.Value, "remove and return the first value of a list", _READ),
    Operation(0x13, m.RPop, m.Value, "remove and return the last value of a list", _READ),
    Operation(0x14, m.LRange, m.Values, "get a range of a list, both ends inclusive", _READ),
    Operation(0x15, m.LLen, m.Length, "get the length of a list", _READ),
    Operation(0x20, m.Incr, m.Number, "increment a counter", _COUNTED),
    Operation(0x21, m.Decr, m.Number, "decrement a counter", _COUNTED),
    Operation(0x22, m.IncrBy, m.Number, "add a number to a counter", _COUNTED),
    Operation(0x30, m.HSet, m.Count, "set fields of a hash; returns how many are new", (*_KEPT, S.WRONG_TYPE)),
    Operation(0x31, m.HGet, m.Value, "get the value of a field", _READ),
    Operation(0x32, m.HDel, m.Count, "remove fields of a hash; returns how many existed", _READ),
    Operation(0x33, m.HGetAll, m.Pairs, "get all fields and values of a hash", _READ),
    Operation(0x50, m.Snapshot, m.SnapshotTaken, "write a snapshot file, and truncate the log before it"),
    Operation(0x51, m.Memory, m.MemoryUse, "get the memory used by keys"),
    Operation(0x52, m.Stats, m.Statistics, "get counts of all nodes"),
    Operation(0x60, m.ClusterInfo, m.ClusterState, "get the node's view of its cluster"),
    Operation(0x61, m.ClusterNodes, m.Nodes, "list the nodes and their addresses"),
    Operation(0x62, m.Leave, m.Done, "remove the node from its cluster"),
)

BY_REQUEST: Final[dict[type[Any], Operation]] = {row.request: row for row in OPERATIONS}
BY_NUMBER: Final[dict[int, Operation]] = {row.number: row for row in OPERATIONS}

SECRETS: Final[dict[type, tuple[str, ...]]] = {m.Auth: ("token",)}
"""Message type → attributes that logs never show."""
