"""Verify transactions: a partition asks the producer's coordinator before a transaction's first batch.

Invariants: no record is written in a transaction that its coordinator does not know to be open in this partition,
because no marker would end it. An answer is void if a marker, a newer coordinator or another leader epoch arrived
after the request. A producer's later batches wait behind the one that is verified.
"""

from collections.abc import Awaitable, Callable

import msgspec

from braidlog.codec.batch.header import BatchHeader
from braidlog.codec.batch.records import NO_NUMBER
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.partition import Partition

ATTEMPTS_MAX = 3
"""Attempts after void answers: each answer describes the current state."""


class Verified(msgspec.Struct, frozen=True, array_like=True):
    """The coordinator's confirmation that a transaction is open and includes the partition."""

    coordinator_epoch: int
    number: int


class Question(msgspec.Struct, frozen=True, array_like=True):
    """Asks whether a transaction is open, and includes a partition or commits offsets of a group."""

    name: str
    producer_id: int
    epoch: int
    of: tuple[str, int] | str
    adds: bool = False
    """Whether to add the partition or group to the transaction."""
    begins: bool = False
    """Whether to begin the transaction for that if it is not open."""


Ask = Callable[[Question], Awaitable[Verified]]
"""Asks the coordinator; raises if the transaction is not open."""


class Verification:
    """Verifies transactions, one request per producer and partition at a time."""

    def __init__(self, ask: Ask, runtime: Runtime) -> None:
        self._ask = ask
        self._turns = KeyedLock(runtime)

    def is_done(self, hosted: Partition, header: BatchHeader) -> bool:
        """Return whether the batch needs no request and no earlier batch of its producer waits for one."""
        return hosted.verified.get(header.producer_id) == header.producer_epoch and not self.is_asking(hosted, header)

    def is_asking(self, hosted: Partition, header: BatchHeader) -> bool:
        """Return whether an earlier batch of that producer waits for the coordinator."""
        return self._turns.is_busy and self._turns.is_held(_turn(hosted, header))

    async def verify(self, hosted: Partition, header: BatchHeader, transactional_id: str, *, adds: bool) -> None:
        """Return when the batch may be written. Call it before `Append.write`, without an await between them."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        async with self._turns.acquire(_turn(hosted, header)):
            for _ in range(ATTEMPTS_MAX):
                if hosted.verified.get(producer_id) == epoch:
                    return
                hosted.require_leader()
                leader_epoch = hosted.leader_epoch
                answer = await self._ask(_question(hosted, header, transactional_id, adds=adds))
                hosted.require_leader()
                if hosted.leader_epoch == leader_epoch and _holds(hosted, producer_id, answer):
                    hosted.verified[producer_id] = epoch
        if hosted.verified.get(producer_id) != epoch:
            raise BrokerError(
                Reason.CONCURRENT_TRANSACTIONS,
                f"transactions of {transactional_id[:60]!r} end in {hosted} during a check of an open one; try again",
            )


def _question(hosted: Partition, header: BatchHeader, transactional_id: str, *, adds: bool) -> Question:
    place = hosted.topic, hosted.number
    return Question(transactional_id, header.producer_id, header.producer_epoch, place, adds, adds)


def _turn(hosted: Partition, header: BatchHeader) -> str:
    return f"{hosted} {header.producer_id}"


def _holds(hosted: Partition, producer_id: int, answer: Verified) -> bool:
    """Return whether the log has nothing newer than the answer."""
    known = hosted.log.state.producers.find(producer_id)
    if known is None:
        return True
    is_open = answer.number == NO_NUMBER or answer.number > known.ended
    return is_open and answer.coordinator_epoch >= known.coordinator_epoch
