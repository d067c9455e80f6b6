"""Define the operations of the key-value store and their results, independent of any dialect.

Each operation is a frozen struct whose base names the type of its result: `execute(Get(key))` returns `bytes`.

| operation                  | result           | refused with                                                             |
|----------------------------|------------------|--------------------------------------------------------------------------|
| `Get`                      | bytes            | KEY_NOT_FOUND, WRONG_TYPE                                                |
| `Set`                      | bool: was it set | VALUE_TOO_LARGE, OUT_OF_MEMORY                                           |
| `Delete`                   | None             | KEY_NOT_FOUND                                                            |
| `Exists`                   | bool             |                                                                          |
| `Expire`                   | None             | KEY_NOT_FOUND                                                            |
| `TimeToLive`               | int, seconds     | KEY_NOT_FOUND                                                            |
| `Push`                     | int: new length  | WRONG_TYPE, VALUE_TOO_LARGE, OUT_OF_MEMORY                               |
| `Pop`                      | bytes            | KEY_NOT_FOUND, WRONG_TYPE                                                |
| `ListRange`                | list[bytes]      | KEY_NOT_FOUND, WRONG_TYPE                                                |
| `ListLength`               | int              | KEY_NOT_FOUND, WRONG_TYPE                                                |
| `Increment`                | int: new value   | WRONG_TYPE, NOT_A_NUMBER, NUMBER_OVERFLOW, OUT_OF_MEMORY                 |
| `HashSet`                  | int: new fields  | WRONG_TYPE, VALUE_TOO_LARGE, OUT_OF_MEMORY                               |
| `HashGet`                  | bytes            | KEY_NOT_FOUND (the key or the field), WRONG_TYPE                         |
| `HashDelete`               | int: removed     | KEY_NOT_FOUND (the key, or every field), WRONG_TYPE                      |
| `HashGetAll`               | dict             | KEY_NOT_FOUND, WRONG_TYPE                                                |

All of them reject a bad key with INVALID_KEY (empty) or KEY_TOO_LONG. A list or hash that loses its last element is
removed.
"""

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from braidlog.model.errors import BrokerError


class Level(IntEnum):
    """The consistency levels of operations; ADR 31 defines their guarantees."""

    ONE = 1
    """Written: the leader has it. Read: any replica, which may be behind."""
    QUORUM = 2
    """Written: committed, by more than half of the replicas. Read: all that was acknowledged before."""
    ALL = 3
    """Written: every assigned replica has it. Read: as QUORUM, and every replica has it."""


LEVELS = {int(level): level for level in Level}
"""By the number that a client says."""

R = TypeVar("R")

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**63 - 1


class Operation(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """An operation on one key. `R` is the type of its result."""

    key: bytes


class Only(Enum):
    """When a `Set` takes effect."""

    ALWAYS = "always"
    IF_ABSENT = "if-absent"
    IF_PRESENT = "if-present"


class End(Enum):
    """An end of a list."""

    LEFT = "left"
    RIGHT = "right"


# -- any key ---------------------------------------------------------------------------------------------------


class Delete(Operation[None], frozen=True, gc=False):
    """Remove a key of any kind."""


class Exists(Operation[bool], frozen=True, gc=False):
    pass


class Expire(Operation[None], frozen=True, gc=False):
    """Let the key expire after this many seconds; 0 removes the expiry."""

    ttl_seconds: int


class TimeToLive(Operation[int], frozen=True, gc=False):
    """Return the seconds until the key expires, rounded up; 0 means never."""


# -- strings and counters --------------------------------------------------------------------------------------


class Get(Operation[bytes], frozen=True, gc=False):
    """Return the value of a string; a counter is a string of decimal digits."""


class Set(Operation[bool], frozen=True, gc=False):
    """Set the key to a string, whatever its kind was. Replaces an earlier expiry; 0 means never."""

    value: bytes
    ttl_seconds: int = 0
    only: Only = Only.ALWAYS


class Increment(Operation[int], frozen=True, gc=False):
    """Add to a 64-bit counter; a missing key counts as 0. Keeps an existing expiry."""

    amount: int = 1


# -- lists -----------------------------------------------------------------------------------------------------


class Push(Operation[int], frozen=True, gc=False):
    """Add values at an end, one after the other: after a push at LEFT the last value is the first of the list."""

    end: End
    values: tuple[bytes, ...]


class Pop(Operation[bytes], frozen=True, gc=False):
    """Remove and return the value at an end."""

    end: End


class ListRange(Operation[list[bytes]], frozen=True, gc=False):
    """Return the elements from `first` to `last`, both included.

    Negative numbers count from the end, -1 is the last one.

    Positions outside of the list are ignored. `bytes_max` limits the sum of the values: a larger result is rejected
    with VALUE_TOO_LARGE, never truncated.
    """

    first: int
    last: int
    bytes_max: int = 2**31


class ListLength(Operation[int], frozen=True, gc=False):
    pass


# -- hashes ----------------------------------------------------------------------------------------------------


class HashSet(Operation[int], frozen=True, gc=False):
    """Set fields; returns how many of them are new."""

    fields: tuple[tuple[bytes, bytes], ...]


class HashGet(Operation[bytes], frozen=True, gc=False):
    field: bytes


class HashDelete(Operation[int], frozen=True, gc=False):
    """Remove fields; returns how many existed."""

    fields: tuple[bytes, ...]


class HashGetAll(Operation[dict[bytes, bytes]], frozen=True, gc=False):
    """Return every field and its value, in insertion order. `bytes_max` as in `ListRange`."""

    bytes_max: int = 2**31


# -- batches of operations -------------------------------------------------------------------------------------


class Kind(IntEnum):
    """The operation of a row of `Columns`."""

    GET = 0
    SET = 1
    DELETE = 2
    INCREMENT = 3
    DECREMENT = 4


class Columns(msgspec.Struct, frozen=True):
    """A batch of operations as columns: a struct per operation would cost more than its execution."""

    mutates: bool
    """Whether all of them change something; else all of them are GET."""
    kinds: bytes
    keys: list[bytes]
    values: list[bytes]
    """Of each SET. No column of reads."""
    ttls: list[int] | None = None
    """Of each SET, seconds; None: all 0."""

    def operation(self, row: int) -> Operation[Any]:
        """Return the operation of one row."""
        kind, key = self.kinds[row], self.keys[row]
        if kind == Kind.SET:
            return Set(key, self.values[row], self.ttls[row] if self.ttls else 0)
        if kind in {Kind.INCREMENT, Kind.DECREMENT}:
            return Increment(key, 1 if kind == Kind.INCREMENT else -1)
        return Delete(key) if kind == Kind.DELETE else Get(key)

    def without(self, refusals: Sequence[BrokerError | None]) -> "Columns":
        """Return the rows without a refusal."""
        rows = [row for row, refusal in enumerate(refusals) if refusal is None]
        return Columns(
            self.mutates,
            bytes([self.kinds[row] for row in rows]),
            [self.keys[row] for row in rows],
            [self.values[row] for row in rows] if self.values else [],
            [self.ttls[row] for row in rows] if self.ttls else None,
        )


class Results(NamedTuple):
    """The results of `Columns`, row by row."""

    found: list[Any]
    """What the operation gives; True for a DELETE; None: there is no such key; a `BrokerError`: refused."""
    refused: list[int]
    """The rows with a `BrokerError`."""

    def among(self, refusals: Sequence[BrokerError | None]) -> "Results":
        """Return the results of all rows, given that these are the results of the rows without a refusal."""
        carried_out = iter(self.found)
        found = [next(carried_out) if refusal is None else refusal for refusal in refusals]
        return Results(found, [row for row, result in enumerate(found) if isinstance(result, BrokerError)])


# -- statistics ------------------------------------------------------------------------------------------------


class SnapshotDone(msgspec.Struct, frozen=True):
    """A snapshot that is durable."""

    sequence: int
    """The mutations up to this one are in it."""
    keys: int
    bytes: int
    """The size of its file."""
    taken_ms: int
    """When it began, wall time: what it shows is the store of that moment."""
    wal_bytes_freed: int


class MemoryUsage(msgspec.Struct, frozen=True):
    """The memory usage of the keys, as accounted for the limit."""

    used_bytes: int
    limit_bytes: int
    """0: no limit."""
    peak_bytes: int
    keys: int
    resident_bytes: int
    """The whole process, as the kernel sees it; 0 where it does not say."""


class Stats(msgspec.Struct, frozen=True):
    """Counts since the node started, unless stated otherwise."""

    uptime_seconds: int
    keys: int
    keys_with_ttl: int
    strings: int
    lists: int
    hashes: int
    operations: int
    hits: int
    misses: int
    mutations: int
    expired: int
    evicted: int
    refused_for_memory: int
    sequence: int
    """Mutations since the store was made."""
    durable_sequence: int
    feed_sequence: int
    """Mutations that are in the change feed; 0 without one."""
    wal_bytes: int
    wal_files: int
    snapshots: int
    snapshot_sequence: int
    """The last mutation in the newest snapshot; 0 without one."""
    snapshot_taken_ms: int
