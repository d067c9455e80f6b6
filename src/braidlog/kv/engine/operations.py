"""What can be asked of the key-value store, and what each question gives back.

Knows: the operations, in no dialect's words. Refuses to know: how they are carried out, how they travel.
Each operation is a frozen struct whose base names the type of its result: `execute(Get(key))` gives `bytes`.

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
| `HashDelete`               | int: fields gone | KEY_NOT_FOUND (the key, or every field), WRONG_TYPE                      |
| `HashGetAll`               | dict             | KEY_NOT_FOUND, WRONG_TYPE                                                |

All of them refuse a bad key with INVALID_KEY (empty) or KEY_TOO_LONG. A list or hash that loses its last element is gone.
"""

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from braidlog.model.errors import BrokerError


class Level(IntEnum):
    """What each promises is in ADR 31."""

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
    """Something asked of one key. `R` is what it gives back."""

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
    """Forget a key, whatever it holds."""


class Exists(Operation[bool], frozen=True, gc=False):
    pass


class Expire(Operation[None], frozen=True, gc=False):
    """Let the key go in so many seconds; 0 means never."""

    ttl_seconds: int


class TimeToLive(Operation[int], frozen=True, gc=False):
    """Seconds until the key goes, rounded up; 0 means never."""


# -- strings and counters --------------------------------------------------------------------------------------


class Get(Operation[bytes], frozen=True, gc=False):
    """The value of a string; a counter is a string of decimal digits."""


class Set(Operation[bool], frozen=True, gc=False):
    """Make the key a string, whatever it was. It expires as this says: an older expiry is forgotten, 0 means never."""

    value: bytes
    ttl_seconds: int = 0
    only: Only = Only.ALWAYS


class Increment(Operation[int], frozen=True, gc=False):
    """Add to a 64-bit counter, which is 0 if it is not there. An older expiry stays."""

    amount: int = 1


# -- lists -----------------------------------------------------------------------------------------------------


class Push(Operation[int], frozen=True, gc=False):
    """Put values on an end, one after the other: pushed LEFT, the last of them is the first of the list."""

    end: End
    values: tuple[bytes, ...]


class Pop(Operation[bytes], frozen=True, gc=False):
    """Take the value at an end."""

    end: End


class ListRange(Operation[list[bytes]], frozen=True, gc=False):
    """The elements from `first` to `last`, both included; negative numbers count from the end, -1 is the last one.

    What lies outside of the list is not there and no error. `bytes_max` bounds what is given back (the sum of the values): more
    is refused with VALUE_TOO_LARGE, never cut short in silence.
    """

    first: int
    last: int
    bytes_max: int = 2**31


class ListLength(Operation[int], frozen=True, gc=False):
    pass


# -- hashes ----------------------------------------------------------------------------------------------------


class HashSet(Operation[int], frozen=True, gc=False):
    """Set fields; gives how many of them are new."""

    fields: tuple[tuple[bytes, bytes], ...]


class HashGet(Operation[bytes], frozen=True, gc=False):
    field: bytes


class HashDelete(Operation[int], frozen=True, gc=False):
    """Take fields away; gives how many were there."""

    fields: tuple[bytes, ...]


class HashGetAll(Operation[dict[bytes, bytes]], frozen=True, gc=False):
    """Every field and its value, in the order in which the fields came. `bytes_max` as in `ListRange`."""

    bytes_max: int = 2**31


# -- many at once ----------------------------------------------------------------------------------------------


class Kind(IntEnum):
    """What a row of `Columns` asks."""

    GET = 0
    SET = 1
    DELETE = 2
    INCREMENT = 3
    DECREMENT = 4


class Columns(msgspec.Struct, frozen=True):
    """Operations that came together, side by side: a struct for each would cost more than to carry it out."""

    mutates: bool
    """Whether all of them change something; else all of them are GET."""
    kinds: bytes
    keys: list[bytes]
    values: list[bytes]
    """Of each SET. No column of reads."""
    ttls: list[int] | None = None
    """Of each SET, seconds; None: all 0."""

    def operation(self, row: int) -> Operation[Any]:
        """The same by itself."""
        kind, key = self.kinds[row], self.keys[row]
        if kind == Kind.SET:
            return Set(key, self.values[row], self.ttls[row] if self.ttls else 0)
        if kind in {Kind.INCREMENT, Kind.DECREMENT}:
            return Increment(key, 1 if kind == Kind.INCREMENT else -1)
        return Delete(key) if kind == Kind.DELETE else Get(key)

    def without(self, refusals: Sequence[BrokerError | None]) -> "Columns":
        """The rows that are not refused."""
        rows = [row for row, refusal in enumerate(refusals) if refusal is None]
        return Columns(
            self.mutates,
            bytes([self.kinds[row] for row in rows]),
            [self.keys[row] for row in rows],
            [self.values[row] for row in rows] if self.values else [],
            [self.ttls[row] for row in rows] if self.ttls else None,
        )


class Results(NamedTuple):
    """What `Columns` gave, row by row."""

    found: list[Any]
    """What the operation gives; True for a DELETE; None: there is no such key; a `BrokerError`: refused."""
    refused: list[int]
    """The rows with a `BrokerError`."""

    def among(self, refusals: Sequence[BrokerError | None]) -> "Results":
        """Return the results of all rows, where these are of the rows that were not refused before."""
        carried_out = iter(self.found)
        found = [next(carried_out) if refusal is None else refusal for refusal in refusals]
        return Results(found, [row for row, result in enumerate(found) if isinstance(result, BrokerError)])


# -- figures ---------------------------------------------------------------------------------------------------


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
    """What the keys take in memory, as accounted for the limit."""

    used_bytes: int
    limit_bytes: int
    """0: no limit."""
    peak_bytes: int
    keys: int
    resident_bytes: int
    """The whole process, as the kernel sees it; 0 where it does not say."""


class Stats(msgspec.Struct, frozen=True):
    """Counts since the node started, unless they say otherwise."""

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
