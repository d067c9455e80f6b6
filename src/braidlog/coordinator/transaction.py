"""One transaction as a value: what is kept of it, and what follows it.

Knows: states. Refuses to know: who decides, where it is kept.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from braidlog.codec.batch import NO_PRODUCER
from braidlog.codec.records import NO_NUMBER
from braidlog.coordinator.markers import End
from braidlog.coordinator.offsets import Commit
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX

NO_EPOCH = -1


class TxnState(StrEnum):
    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


DECIDED = (TxnState.COMMITTING, TxnState.ABORTING)
ENDED = (TxnState.COMMITTED, TxnState.ABORTED)
ABORTS = (TxnState.ABORTING, TxnState.ABORTED)


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
    last_epoch: int = NO_EPOCH
    """The epoch this one replaced at its producer's own wish, until that one uses it: asking for that again is a retry."""
    last_producer_id: int = NO_PRODUCER
    """Whose epoch that was, if the producer got another id with this one."""
    once: bool = False
    """Its id was made for this transaction alone: once it has ended, it is forgotten."""
    number: int = NO_NUMBER
    """How many this id has begun, this one or the last: what its markers carry."""
    groups: list[str] = []
    """Whose commits it carries: they are pending where the group is kept."""

    def replaced(self, producer_id: int, epoch: int) -> bool:
        """Whether its producer was that before, and may not know yet what it is now."""
        last_id = self.producer_id if self.last_producer_id == NO_PRODUCER else self.last_producer_id
        return (producer_id, epoch) == (last_id, self.last_epoch) and epoch != NO_EPOCH


class Producing(NamedTuple):
    """A producer as it names itself: its transactional id, its producer id and its epoch."""

    name: str
    producer_id: int
    epoch: int


def fenced(found: Transaction, last_epoch: int = NO_EPOCH) -> Transaction:
    """To be aborted, in a new epoch: its markers carry it, so that the earlier self cannot append behind them.

    With `last_epoch` that one asks for it, and is told a later one when all has ended."""
    return msgspec.structs.replace(found, epoch=found.epoch + 1, state=TxnState.ABORTING, last_epoch=last_epoch)


def to_end(found: Transaction, *, commit: bool, bump: bool) -> Transaction:
    """To be committed, or aborted. `bump`: in a new epoch that its producer goes on with once it has ended, so that nothing of
    this one that comes late counts with the next."""
    state = TxnState.COMMITTING if commit else TxnState.ABORTING
    if not bump:
        return msgspec.structs.replace(found, state=state, last_epoch=NO_EPOCH)
    return msgspec.structs.replace(
        found, state=state, epoch=found.epoch + 1, last_epoch=found.epoch, last_producer_id=NO_PRODUCER
    )


def end_of(found: Transaction, coordinator_epoch: int) -> End:
    """Of one that is decided, as its partitions and groups are told it."""
    commit = found.state is TxnState.COMMITTING
    return End(found.producer_id, found.epoch, coordinator_epoch, found.number, commit, found.partitions, found.groups)


def ended(found: Transaction) -> Transaction:
    state = TxnState.COMMITTED if found.state is TxnState.COMMITTING else TxnState.ABORTED
    return msgspec.structs.replace(after(found), state=state, once=found.once, last_epoch=found.last_epoch)


def after(found: Transaction) -> Transaction:
    """What its producer goes on with: the next transaction, before it has begun."""
    return Transaction(found.producer_id, found.epoch, found.timeout_ms, number=found.number)


def is_over(found: Transaction) -> bool:
    """Whether nobody will ask for it again."""
    return found.once and found.state in ENDED


def check_transactional_id(name: str) -> None:
    if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise BrokerError(
            Reason.INVALID_TRANSACTION_STATE,
            f"a transactional id has 1 to {NAME_CHARS_MAX} printable characters, not {name[:60]!r}",
        )
