"""What a server tells of transactions.

Knows: the shape of it. Refuses to know: which protocol it came by, who decides.
"""

import msgspec

OPEN = "Ongoing"
"""The state of one that has neither been committed nor aborted, nor is about to be."""


class ListedTransaction(msgspec.Struct, frozen=True, order=True):
    """A transactional id, and how its last transaction is."""

    transactional_id: str
    state: str
    producer_id: int


class TransactionPartition(msgspec.Struct, frozen=True, order=True):
    topic: str
    partition: int


class TransactionInfo(msgspec.Struct, frozen=True):
    """The last transaction of a transactional id. `started_ms` is null if none has begun; `partitions`: where it writes."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TransactionPartition, ...]
