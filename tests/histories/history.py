"""What clients did to a node or a cluster and what it said: every operation with its start, its end and its outcome.

Knows: operations as values. Refuses to know: clients, doors, what is right (`checker.py`). All times are one monotonic clock's,
in seconds, real or simulated; an operation whose outcome is unknown has no end: it may still happen at any later time, or never.
"""

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

NEVER = math.inf


class Outcome(Enum):
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """It was not done, and the client knows it."""
    UNKNOWN = "unknown"


class Resends(Enum):
    """What a client does with an append whose answer did not come."""

    NEVER = "never"
    ONCE = "idempotent"
    """Again, with its number: it must be there once, and in order."""
    AT_LEAST_ONCE = "at least once"


@dataclass(slots=True)
class Append:
    """One record of a client; its value says whose it is, and its number."""

    client: str
    number: int
    topic: str
    start: float
    end: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1
    transaction: str | None = None
    key: str | None = None
    """In a compacted topic: a later record of the same key may take its place."""
    removes: bool = False
    """A tombstone."""

    @property
    def value(self) -> str:
        return f"{self.client}.{self.number}"


@dataclass(slots=True)
class Transaction:
    """`start` is when its end was asked for: nothing of it may be seen before."""

    name: str
    commit: bool
    start: float = NEVER
    end: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class Read:
    """What is between two offsets of a topic, as one client was shown it."""

    client: str
    topic: str
    records: dict[int, str]
    first_offset: int
    next_offset: int
    start: float
    end: float
    committed: bool = False
    """Only what transactions have committed."""
    last: bool = False
    """From the beginning of the topic (`first_offset`, where deletions have moved it) to its end, after everything else."""
    watermark: int | None = None
    """The end of what is committed, as the answer said it."""


@dataclass(slots=True)
class Written:
    """A commit of a group: the register `name` was set to `value`."""

    name: str
    value: int
    start: float
    end: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class Seen:
    """What a register, or a counter, was said to be."""

    name: str
    value: int
    start: float
    end: float


@dataclass(slots=True)
class Increment:
    """By one; `value` is what the counter became, as it was answered."""

    name: str
    start: float
    end: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    value: int = -1


@dataclass(slots=True)
class Lease:
    """A key that was set to live for so long."""

    name: str
    seconds: float
    start: float
    end: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class Looked:
    """Whether a key with a lease was there."""

    name: str
    found: bool
    start: float
    end: float


class Action(Enum):
    """What a call does to its key; in brackets its argument → its answer."""

    GET = "get"
    """(→ the value, or None)"""
    SET = "set"
    """(the value →)"""
    DELETE = "delete"
    """(→ whether there was a value)"""
    INCREMENT = "increment"
    """(by how much → the sum); no value counts as 0"""
    SWAP = "compare and set"
    """((the value expected, the new one) → whether it was set); None is no value"""


Value = int | str | None


@dataclass(slots=True)
class Call:
    """One operation on one key, or on one register of metadata. A compare-and-set that answers "no" is acknowledged."""

    client: str
    key: str
    action: Action
    argument: Value | tuple[Value, Value] = None
    start: float = 0
    end: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    answer: Value = None

    def __str__(self) -> str:
        argument = "" if self.argument is None else f" {self.argument}"
        answer = f"→ {self.answer}" if self.outcome is Outcome.ACKNOWLEDGED else self.outcome.value
        return f"[{self.start:g}, {self.end:g}] {self.client} {self.action.value}{argument} {answer}"


Operation = Append | Transaction | Read | Written | Seen | Increment | Lease | Looked | Call


@dataclass
class History:
    """Clients add what they begin, and complete it when they know more."""

    resends: dict[str, Resends] = field(default_factory=dict)
    """Client → what it does when it is in doubt; one that is not named never sends anything twice."""
    operations: list[Operation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *operations: Operation) -> None:
        with self._lock:
            self.operations.extend(operations)

    def count(self, kinds: Iterable[type[Operation]], outcome: Outcome) -> int:
        wanted = tuple(kinds)
        with self._lock:
            return sum(
                isinstance(each, wanted) and getattr(each, "outcome", None) is outcome for each in self.operations
            )
