"""The table of commands: what readers, writers, the page in docs/dialects and the tests are made from.

Knows: which command has which number, answer and statuses. Refuses to know: bytes, and services.
Invariant: a request type and a number each occur in one row only; the high nibble of a number is its group; 0x4_ stays free.
"""

from typing import Any, Final

import msgspec

from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.fields import payload_bytes_max
from braidlog.wire.mayfly.messages import Status as S  # noqa: N817 - a column of the table

GROUPS: Final = {0x0: "core", 0x1: "lists", 0x2: "counters", 0x3: "hashes", 0x5: "administration", 0x6: "cluster"}

EVERYWHERE: Final = (S.BAD_PAYLOAD, S.SERVER_ERROR, S.AUTH_REQUIRED)
"""What any command may be answered with. TIMEOUT, MOVED and TOPOLOGY_CHANGED join them when there is more than one node."""

CONNECTION: Final = (S.UNKNOWN_CMD, S.UNSUPPORTED_VERSION)
"""What a frame is answered with that is no command."""

CLUSTERED: Final = (S.TIMEOUT, S.MOVED, S.TOPOLOGY_CHANGED)
"""What only a node among others says."""


class Operation(msgspec.Struct, frozen=True):
    """One row: a command, its answer, and how it can fail beyond `EVERYWHERE`."""

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
    Operation(0x00, m.Auth, m.Done, "say who one is, before anything else", (S.AUTH_FAILED,)),
    Operation(0x01, m.Set, m.Stored, "make a key a string", _KEPT),
    Operation(0x02, m.Get, m.Value, "the value of a string or a counter", _READ),
    Operation(0x03, m.Del, m.Done, "forget a key", _THERE),
    Operation(0x04, m.Ping, m.Done, "is anyone there"),
    Operation(0x05, m.Quit, m.Done, "end the connection in peace"),
    Operation(0x06, m.Exists, m.Done, "is there such a key", _THERE),
    Operation(0x07, m.Expire, m.Done, "let a key go in so many seconds; 0: never", _THERE),
    Operation(0x08, m.Ttl, m.TimeLeft, "seconds until a key goes, begun ones counted; 0: never", _THERE),
    Operation(0x09, m.Scan, m.Names, "names of keys, piece by piece", (S.KEY_TOO_LONG,)),
    Operation(0x10, m.LPush, m.Length, "put values before a list, one after the other", (*_KEPT, S.WRONG_TYPE)),
    Operation(0x11, m.RPush, m.Length, "put values behind a list", (*_KEPT, S.WRONG_TYPE)),
    Operation(0x12, m.LPop, m.Value, "take the first value of a list", _READ),
    Operation(0x13, m.RPop, m.Value, "take the last value of a list", _READ),
    Operation(0x14, m.LRange, m.Values, "values of a list, both ends included", _READ),
    Operation(0x15, m.LLen, m.Length, "how many values a list has", _READ),
    Operation(0x20, m.Incr, m.Number, "add one to a counter", _COUNTED),
    Operation(0x21, m.Decr, m.Number, "take one from a counter", _COUNTED),
    Operation(0x22, m.IncrBy, m.Number, "add to a counter", _COUNTED),
    Operation(0x30, m.HSet, m.Count, "set fields of a hash; how many are new", (*_KEPT, S.WRONG_TYPE)),
    Operation(0x31, m.HGet, m.Value, "the value of a field", _READ),
    Operation(0x32, m.HDel, m.Count, "take fields from a hash; how many were there", _READ),
    Operation(0x33, m.HGetAll, m.Pairs, "every field and its value", _READ),
    Operation(0x50, m.Snapshot, m.SnapshotTaken, "write everything to one file, and drop the log before it"),
    Operation(0x51, m.Memory, m.MemoryUse, "what the keys take"),
    Operation(0x52, m.Stats, m.Statistics, "counts of all nodes"),
    Operation(0x60, m.ClusterInfo, m.ClusterState, "what the node knows of its cluster"),
    Operation(0x61, m.ClusterNodes, m.Nodes, "the nodes and their addresses"),
    Operation(0x62, m.Leave, m.Done, "take the node out of its cluster"),
)

BY_REQUEST: Final[dict[type[Any], Operation]] = {row.request: row for row in OPERATIONS}
BY_NUMBER: Final[dict[int, Operation]] = {row.number: row for row in OPERATIONS}

SECRETS: Final[dict[type, tuple[str, ...]]] = {m.Auth: ("token",)}
"""Message type → attributes that no log shows."""
