"""Transactions that write here: a partition that several nodes hold asks a producer's coordinator before the first batch.

Knows: whose answer holds, for how long. Refuses to know: who the coordinator is.
Invariants: no record of a transaction is written that its coordinator does not know to be open in this partition, for nothing
would ever end it; an answer is void if a marker, a newer coordinator or another leader epoch came since it was asked; a
producer's later batches wait behind the one that asks.
"""

from collections.abc import Awaitable, Callable

import msgspec

from braidlog.codec.batch import BatchHeader
from braidlog.codec.records import NO_NUMBER
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.turns import Turns
from braidlog.model.world import World
from braidlog.partition.cluster_partition import ClusterPartition

ATTEMPTS_MAX = 3
"""An answer that came too late is asked for again: it says how things are now."""


class Verified(msgspec.Struct, frozen=True, array_like=True):
    """A coordinator's word that a transaction is open, and writes where it was asked about."""

    coordinator_epoch: int
    number: int


Ask = Callable[[str, int, int, str, int], Awaitable[Verified]]
"""ask(transactional id, producer id, epoch, topic, partition) raises if no open transaction of that producer writes there."""


class Verification:
    """The use case."""

    def __init__(self, ask: Ask, world: World) -> None:
        self._ask = ask
        self._turns = Turns(world)

    def is_done(self, hosted: ClusterPartition, header: BatchHeader) -> bool:
        """Whether there is nothing to ask, and nobody of that producer to wait behind."""
        return hosted.verified.get(header.producer_id) == header.producer_epoch and not (
            self._turns.is_busy and self._turns.is_held(_turn(hosted, header))
        )

    async def ask(self, hosted: ClusterPartition, header: BatchHeader, transactional_id: str) -> None:
        """Return when the batch may be written; comes before `Append.write`, with no wait between them."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        async with self._turns.take(_turn(hosted, header)):
            for _ in range(ATTEMPTS_MAX):
                if hosted.verified.get(producer_id) == epoch:
                    return
                hosted.require_leader()
                leader_epoch = hosted.leader_epoch
                answer = await self._ask(transactional_id, producer_id, epoch, hosted.topic, hosted.number)
                hosted.require_leader()
                if hosted.leader_epoch == leader_epoch and _holds(hosted, producer_id, answer):
                    hosted.verified[producer_id] = epoch
        if hosted.verified.get(producer_id) != epoch:
            raise BrokerError(
                Reason.CONCURRENT_TRANSACTIONS,
                f"transactions of {transactional_id[:60]!r} end in {hosted} while it is asked whether one is open; try again",
            )


def _turn(hosted: ClusterPartition, header: BatchHeader) -> str:
    return f"{hosted} {header.producer_id}"


def _holds(hosted: ClusterPartition, producer_id: int, answer: Verified) -> bool:
    """Whether the log has seen nothing that is newer than the answer."""
    known = hosted.log.state.producers.find(producer_id)
    if known is None:
        return True
    is_open = answer.number == NO_NUMBER or answer.number > known.ended
    return is_open and answer.coordinator_epoch >= known.coordinator_epoch
