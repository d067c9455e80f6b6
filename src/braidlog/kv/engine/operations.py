"""The operations of the key-value store and their results.

Does not handle: execution, transport.

Each operation is a frozen struct whose base names the type of its result: `execute(Get(key))` returns `bytes`.

| operation                  | result           | refused with                                                        |
|----------------------------|------------------|---------------------------------------------------------------------|
| `Get`                      | bytes            | KEY_NOT_FOUND, WRONG_TYPE                                           |
| `Set`                      | bool: was it set | VALUE_TOO_LARGE, OUT_OF_MEMORY                                      |
| `Delete`                   | None             | KEY_NOT_FOUND                                                       |
| `Exists`                   | bool             |                                                                     |
| `Expire`                   | None             | KEY_NOT_FOUND                                                       |
| `TimeToLive`               | int, seconds     | KEY_NOT_FOUND                                                       |
| `Push`                     | int: new length  | WRONG_TYPE, VALUE_TOO_LARGE, OUT_OF_MEMORY                          |
| `Pop`                      | bytes            | KEY_NOT_FOUND, WRONG_TYPE                                           |
| `ListRange`                | list[bytes]      | KEY_NOT_FOUND, WRONG_TYPE                                           |
| `ListLength`               | int              | KEY_NOT_FOUND, WRONG_TYPE                                           |
| `Increment`                | int: new value   | WRONG_TYPE, NOT_A_NUMBER, NUMBER_OVERFLOW, OUT_OF_MEMORY            |
| `HashSet`                  | int: new fields  | WRONG_TYPE, VALUE_TOO_LARGE, OUT_OF_MEMORY                          |
| `HashGet`                  | bytes            | KEY_NOT_FOUND (the key or the field), WRONG_TYPE                    |
| `HashDelete`               | int: deleted     | KEY_NOT_FOUND (the key, or every field), WRONG_TYPE                 |
| `HashGetAll`               | dict             | KEY_NOT_FOUND, WRONG_TYPE                                           |

All operations refuse a bad key with INVALID_KEY (empty) or KEY_TOO_LONG. A list or hash without elements is
deleted.
"""

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from braidlog.model.errors import BrokerError


class Level(IntEnum):
    """Consistency level of an operation; ADR 31 defines the guarantees."""

    ONE = 1
    """Write: the leader has it. Read: any replica, which may be behind."""
    QUORUM = 2
    """Write: committed, by more than half of the replicas. Read: everything that was acknowledged before."""
    ALL = 3
    """Write: every assigned replica has it. Read: as QUORUM, and every replica has it."""


LEVELS = {int(level): level for level in Level}
"""By the number in client requests."""

R = TypeVar("R")

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**63 - 1


class Operation(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """An operation on one key. `R` is the type of its result."""

    key: bytes


class Only(Enum):
    """The condition of a `Set`."""

    ALWAYS = "always"
    IF_ABSENT = "if-absent"
    IF_PRESENT = "if-present"


class End(Enum):
    """An end of a list."""

    LEFT = "left"
    RIGHT = "right"


# -- any key ---------------------------------------------------------------------------------------------------


class Delete(Operation[None], frozen=True, gc=False):
    """Delete a key of any type."""


class Exists(Operation[bool], frozen=True, gc=False):
    pass


class Expire(Operation[None], frozen=True, gc=False):
    """Expire the key in `ttl_seconds`; 0 means never."""

    ttl_seconds: int


class TimeToLive(Operation[int], frozen=True, gc=False):
    """Return the seconds until the key expires, rounded up; 0 means never."""


# -- strings and counters --------------------------------------------------------------------------------------


class Get(Operation[bytes], frozen=True, gc=False):
    """Return the value of a string; a counter is a string of decimal digits."""


class Set(Operation[bool], frozen=True, gc=False):
    """Set the key to a string; its old value may have any type. `ttl_seconds` replaces an older expiry; 0 means
    never."""

    value: bytes
    ttl_seconds: int = 0
    only: Only = Only.ALWAYS


class Increment(Operation[int], frozen=True, gc=False):
    """Add to a 64-bit counter; a missing key counts as 0. An existing expiry is kept."""

    amount: int = 1


# -- lists -----------------------------------------------------------------------------------------------------


class Push(Operation[int], frozen=True, gc=False):
    """Add values at an end, one after the other: with LEFT, the last value becomes the first of the list."""

    end: End
    values: tuple[bytes, ...]


class Pop(Operation[bytes], frozen=True, gc=False):
    """Remove and return the value at an end."""

    end: End


class ListRange(Operation[list[bytes]], frozen=True, gc=False):
    """Return the elements from `first` to `last`, both included; negative numbers count from the end, -1 is the last
    one.

    Positions outside of the list are ignored. `bytes_max` limits the sum of the returned values: a larger result
    is refused with VALUE_TOO_LARGE, never truncated.
    """

    first: int
    last: int
    bytes_max: int = 2**31


class ListLength(Operation[int], frozen=True, gc=False):
    pass


# -- hashes ----------------------------------------------------------------------------------------------------


class HashSet(Operation[int], frozen=True, gc=False):
    """Set fields; return how many of them are new."""

    fields: tuple[tuple[bytes, bytes], ...]


class HashGet(Operation[bytes], frozen=True, gc=False):
    field: bytes


class HashDelete(Operation[int], frozen=True, gc=False):
    """Delete fields; return how many existed."""

    fields: tuple[bytes, ...]


class HashGetAll(Operation[dict[bytes, bytes]], frozen=True, gc=False):
    """Return every field and its value, in insertion order. `bytes_max` as in `ListRange`."""

    bytes_max: int = 2**31


# -- columns ---------------------------------------------------------------------------------------------------


class Kind(IntEnum):
    """The operation of a row of `Columns`."""

    GET = 0
    SET = 1
    DELETE = 2
    INCREMENT = 3
    DECREMENT = 4


class Columns(msgspec.Struct, frozen=True):
    """Operations that arrived together, as columns: a struct for each would cost more than its execution."""

    mutates: bool
    """Whether all of them are changes; else all of them are GET."""
    kinds: bytes
    keys: list[bytes]
    values: list[bytes]
    """The value of each SET. Empty for reads."""
    ttls: list[int] | None = None
    """The time to live of each SET, in seconds; None: all 0."""

    def operation(self, row: int) -> Operation[Any]:
        """Return one row as an operation."""
        kind, key = self.kinds[row], self.keys[row]
        if kind == Kind.SET:
            return Set(key, self.values[row], self.ttls[row] if self.ttls else 0)
        if kind in {Kind.INCREMENT, Kind.DECREMENT}:
            return Increment(key, 1 if kind == Kind.INCREMENT else -1)
        return Delete(key) if kind == Kind.DELETE else Get(key)

    def without(self, refusals: Sequence[BrokerError | None]) -> "Columns":
        """Return the rows that are not refused."""
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
    """The operation's result; True for a DELETE; None: no such key; a `BrokerError`: refused."""
    refused: list[int]
    """The rows with a `BrokerError`."""

    def among(self, refusals: Sequence[BrokerError | None]) -> "Results":
        """Return the results of all rows, given those of the rows that were not refused before."""
        carried_out = iter(self.found)
        found = [next(carried_out) if refusal is None else refusal for refusal in refusals]
        return Results(found, [row for row, result in enumerate(found) if isinstance(result, BrokerError)])


# -- reports ---------------------------------------------------------------------------------------------------


class SnapshotDone(msgspec.Struct, frozen=True):
    """A durable snapshot."""

    sequence: int
    """The last mutation that it includes."""
    keys: int
    bytes: int
    """The size of its file."""
    taken_ms: int
    """Wall time of its start: it shows the store at that time."""
    wal_bytes_freed: int


class MemoryUsage(msgspec.Struct, frozen=True):
    """The memory that the keys use, as accounted for the limit."""

    used_bytes: int
    limit_bytes: int
    """0: no limit."""
    peak_bytes: int
    keys: int
    resident_bytes: int
    """Resident memory of the process, from the kernel; 0 if unknown."""


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
    """Mutations since the store was created."""
    durable_sequence: int
    feed_sequence: int
    """Mutations in the change feed; 0 without one."""
    wal_bytes: int
    wal_files: int
    snapshots: int
    snapshot_sequence: int
    """The last mutation in the newest snapshot; 0 without one."""
    snapshot_taken_ms: int
