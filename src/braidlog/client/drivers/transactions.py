"""Transactions as a server reports them, and the transactional part of the driver port.

Does not handle: protocols, when a transaction is over (`engine/transaction.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from braidlog.client.errors import UnsupportedError

OPEN = "Ongoing"
"""The state of a transaction that is neither committed nor aborted, nor about to be."""


class ListedTransaction(msgspec.Struct, frozen=True, order=True):
    """A transactional id, and the state of its last transaction."""

    transactional_id: str
    state: str
    producer_id: int


class TransactionPartition(msgspec.Struct, frozen=True, order=True):
    topic: str
    partition: int


class TransactionInfo(msgspec.Struct, frozen=True):
    """The last transaction of a transactional id. `started_ms` is null if none has begun; `partitions`: those it
    writes to."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TransactionPartition, ...]


class PartitionProducer(msgspec.Struct, frozen=True, order=True):
    """A producer whose last sequence a partition remembers. `open_since`: the first offset of its open transaction."""

    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp_ms: int | None
    open_since: int | None


class TransactionalProducer(msgspec.Struct, frozen=True):
    """A transactional producer: its transactional id, and the server's producer id and epoch. A newer epoch fences an
    older one."""

    transactional_id: str
    producer_id: int
    epoch: int


class GroupOffsets(msgspec.Struct, frozen=True):
    """Offsets of a consumer that a transaction commits; for a group member, with the generation in which it read
    them."""

    group: str
    offsets: Mapping[tuple[str, int], int]
    member: str = ""
    generation: int = -1
    instance: str | None = None


class TransactionPort(ABC):
    """The transactional part of a driver. Every method makes one attempt."""

    @abstractmethod
    def missing(self, field: str) -> UnsupportedError: ...

    async def list_transactions(self, *, open_only: bool) -> list[ListedTransaction]:  # noqa: ARG002 - a port's signature
        raise self.missing("transactions")

    async def describe_transaction(self, name: str) -> TransactionInfo:  # noqa: ARG002 - a port's signature
        raise self.missing("transactions")

    async def list_producers(self, topic: str) -> list[PartitionProducer]:  # noqa: ARG002 - a port's signature
        raise self.missing("transactions")

    async def abort_transaction(self, info: TransactionInfo) -> None:  # noqa: ARG002 - a port's signature
        """Abort this transaction, but none that its producer began later."""
        raise self.missing("transactions")

    async def begin_producer(
        self,
        name: str,  # noqa: ARG002 - a port's signature
        timeout_ms: int,  # noqa: ARG002
        last: TransactionalProducer | None = None,  # noqa: ARG002
    ) -> TransactionalProducer:
        """Obtain a new epoch: aborts the open transaction of this name, and fences its previous producer.

        With `last`, the previous identity, the request is refused if another producer has begun since.
        """
        raise self.missing("transactions")

    async def add_to_transaction(self, producer: TransactionalProducer, place: tuple[str, int]) -> None:  # noqa: ARG002
        """Add a partition before writing to it; the first one begins the transaction."""
        raise self.missing("transactions")

    async def add_offsets(self, producer: TransactionalProducer, read: GroupOffsets) -> None:  # noqa: ARG002
        """Commit these offsets with the transaction. `RefusedError(REJOIN)` if the generation is over."""
        raise self.missing("transactions")

    async def commit_transaction(self, producer: TransactionalProducer) -> None:  # noqa: ARG002
        """Commit the transaction; a repeated request gets the same answer."""
        raise self.missing("transactions")
