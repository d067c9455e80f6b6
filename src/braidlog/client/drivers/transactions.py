"""Transactions as a server tells of them, and what a driver that can write in them is asked.

Knows: the shape of it. Refuses to know: which protocol it came by, when a transaction is over (`engine/transaction.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from braidlog.client.errors import UnsupportedError

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


class PartitionProducer(msgspec.Struct, frozen=True, order=True):
    """A producer of which a partition remembers the last sequence. `open_since`: the first offset of its open transaction."""

    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp_ms: int | None
    open_since: int | None


class TransactionalProducer(msgspec.Struct, frozen=True):
    """Who writes in transactions: its transactional id, and what the server gave it. A newer epoch fences an older one."""

    transactional_id: str
    producer_id: int
    epoch: int


class GroupOffsets(msgspec.Struct, frozen=True):
    """What a consumer has read and a transaction commits; as a member of the group, under the generation it read it in."""

    group: str
    offsets: Mapping[tuple[str, int], int]
    member: str = ""
    generation: int = -1
    instance: str | None = None


class TransactionPort(ABC):
    """The part of a driver that is about transactions. Every method is one attempt."""

    @abstractmethod
    def missing(self, field: str) -> UnsupportedError: ...

    async def list_transactions(self, *, open_only: bool) -> list[ListedTransaction]:  # noqa: ARG002 - a port's signature
        raise self.missing("transactions")

    async def describe_transaction(self, name: str) -> TransactionInfo:  # noqa: ARG002 - a port's signature
        raise self.missing("transactions")

    async def list_producers(self, topic: str) -> list[PartitionProducer]:  # noqa: ARG002 - a port's signature
        raise self.missing("transactions")

    async def abort_transaction(self, info: TransactionInfo) -> None:  # noqa: ARG002 - a port's signature
        """That one, and none that its producer began later."""
        raise self.missing("transactions")

    async def begin_producer(
        self,
        name: str,  # noqa: ARG002 - a port's signature
        timeout_ms: int,  # noqa: ARG002
        last: TransactionalProducer | None = None,  # noqa: ARG002
    ) -> TransactionalProducer:
        """Under a new epoch: what is open of this name is aborted, and whoever had it is fenced.

        With `last`, who it was until now, it is refused if another has begun meanwhile.
        """
        raise self.missing("transactions")

    async def add_to_transaction(self, producer: TransactionalProducer, place: tuple[str, int]) -> None:  # noqa: ARG002
        """It is about to write there; the first one begins the transaction."""
        raise self.missing("transactions")

    async def add_offsets(self, producer: TransactionalProducer, read: GroupOffsets) -> None:  # noqa: ARG002
        """They are committed with the transaction. `RefusedError(REJOIN)` when the generation is over."""
        raise self.missing("transactions")

    async def commit_transaction(self, producer: TransactionalProducer) -> None:  # noqa: ARG002
        """Asked again it is the same answer."""
        raise self.missing("transactions")
