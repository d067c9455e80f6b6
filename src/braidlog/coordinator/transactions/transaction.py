"""State of one transaction as a value, and its transitions."""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from braidlog.codec.batch.header import NO_PRODUCER
from braidlog.codec.batch.records import NO_NUMBER
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.transactions.markers import End
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
    """Current state of one transactional id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TxnState = TxnState.EMPTY
    partitions: list[tuple[str, int]] = []
    offsets: list[tuple[str, Commit]] = []
    """Commits that an earlier software version staged here: (group, commit), the last one of each partition."""
    started_ms: int = 0
    used_ms: int = 0
    last_epoch: int = NO_EPOCH
    """The epoch before a bump that the producer requested, until it uses the new one: a repeated request for it is a
    retry.
    """
    last_producer_id: int = NO_PRODUCER
    """The producer id of `last_epoch`, if the bump also changed the id."""
    once: bool = False
    """The id exists for this transaction only, and is deleted when it ends."""
    number: int = NO_NUMBER
    """How many transactions this id has started; its markers carry the number."""
    groups: list[str] = []
    """Groups with commits in this transaction; the commits are pending at each group's coordinator."""

    def replaced(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer had this id and epoch before, and may not know the new ones yet."""
        last_id = self.producer_id if self.last_producer_id == NO_PRODUCER else self.last_producer_id
        return (producer_id, epoch) == (last_id, self.last_epoch) and epoch != NO_EPOCH


class ProducerIdentity(NamedTuple):
    """Identity of a producer in a request: transactional id, producer id and epoch."""

    name: str
    producer_id: int
    epoch: int


def fenced(found: Transaction, last_epoch: int = NO_EPOCH) -> Transaction:
    """The transaction to abort, in a new epoch that its markers carry, so that the earlier producer cannot append
    after them.

    With `last_epoch` the producer itself requested this, and gets a later epoch when the transaction ends.
    """
    return msgspec.structs.replace(found, epoch=found.epoch + 1, state=TxnState.ABORTING, last_epoch=last_epoch)


def to_end(found: Transaction, *, commit: bool, bump: bool) -> Transaction:
    """The transaction to commit or abort.

    `bump`: in a new epoch that the producer uses next, so that late requests of this one do not count for the next.
    """
    state = TxnState.COMMITTING if commit else TxnState.ABORTING
    if not bump:
        return msgspec.structs.replace(found, state=state, last_epoch=NO_EPOCH)
    return msgspec.structs.replace(
        found, state=state, epoch=found.epoch + 1, last_epoch=found.epoch, last_producer_id=NO_PRODUCER
    )


def end_of(found: Transaction, coordinator_epoch: int) -> End:
    """The end of a decided transaction, as sent to its partitions and groups."""
    commit = found.state is TxnState.COMMITTING
    return End(found.producer_id, found.epoch, coordinator_epoch, found.number, commit, found.partitions, found.groups)


def ended(found: Transaction) -> Transaction:
    state = TxnState.COMMITTED if found.state is TxnState.COMMITTING else TxnState.ABORTED
    return msgspec.structs.replace(after(found), state=state, once=found.once, last_epoch=found.last_epoch)


def after(found: Transaction) -> Transaction:
    """The producer's next transaction, before it starts."""
    return Transaction(found.producer_id, found.epoch, found.timeout_ms, number=found.number)


def is_over(found: Transaction) -> bool:
    """Whether the id can be deleted."""
    return found.once and found.state in ENDED


def check_transactional_id(name: str) -> None:
    if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise BrokerError(
            Reason.INVALID_TRANSACTION_STATE,
            f"a transactional id must have 1 to {NAME_CHARS_MAX} printable characters, not {name[:60]!r}",
        )
