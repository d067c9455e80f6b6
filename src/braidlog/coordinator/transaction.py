"""One transaction as a value: what is kept of it, and what follows it.

Knows: states. Refuses to know: who decides, where it is kept.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from braidlog.codec.records import NO_NUMBER
from braidlog.coordinator.offsets import Commit


class TxnState(StrEnum):
    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


DECIDED = (TxnState.COMMITTING, TxnState.ABORTING)
ENDED = (TxnState.COMMITTED, TxnState.ABORTED)


class Transaction(msgspec.Struct, frozen=True):
    """One transactional id's present state."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TxnState = TxnState.EMPTY
    partitions: list[tuple[str, int]] = []
    offsets: list[tuple[str, Commit]] = []
    """Commits that an earlier version staged here: group and commit, the last one of each partition."""
    started_ms: int = 0
    used_ms: int = 0
    last_epoch: int = -1
    """The epoch this one replaced at its producer's own wish: asking for that again is a retry."""
    once: bool = False
    """Its id was made for this transaction alone: once it has ended, it is forgotten."""
    number: int = NO_NUMBER
    """How many this id has begun, this one or the last: what its markers carry."""
    groups: list[str] = []
    """Whose commits it carries: they are pending where the group is kept."""


class Producing(NamedTuple):
    """A producer as it names itself: its transactional id, its producer id and its epoch."""

    name: str
    producer_id: int
    epoch: int


def fenced(found: Transaction) -> Transaction:
    """To be aborted, in a new epoch: its markers carry it, so that the earlier self cannot append behind them."""
    return msgspec.structs.replace(found, epoch=found.epoch + 1, state=TxnState.ABORTING)


def ended(found: Transaction) -> Transaction:
    state = TxnState.COMMITTED if found.state is TxnState.COMMITTING else TxnState.ABORTED
    return msgspec.structs.replace(after(found), state=state, once=found.once)


def after(found: Transaction) -> Transaction:
    """What its producer goes on with: the next transaction, before it has begun."""
    return Transaction(found.producer_id, found.epoch, found.timeout_ms, number=found.number)


def is_over(found: Transaction) -> bool:
    """Whether nobody will ask for it again."""
    return found.once and found.state in ENDED
