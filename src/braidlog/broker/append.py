"""Append: a producer's batch into a partition, acknowledged as asked.

Knows: what each acknowledgement promises. Refuses to know: how the batch came, how the answer goes.
Invariant: an acknowledgement is given only for what is kept: `LEADER` as the topic's `flush` says, `ALL` once every in-sync
replica has it and there are enough of them.
"""

from enum import IntEnum

from braidlog.broker.hosted import HostedPartition
from braidlog.broker.ports import World
from braidlog.broker.topics import Topics
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import Flush
from braidlog.storage.partition import Appended

ACKS_TIMEOUT_MS = 2_000


class Acks(IntEnum):
    """How much of the cluster must have a record before its producer hears of it. Each dialect translates its own spelling."""

    NONE = 0
    LEADER = 1
    ALL = -1


class Append:
    """The use case."""

    def __init__(self, topics: Topics, world: World) -> None:
        self._topics = topics
        self._world = world

    async def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        acks: Acks = Acks.ALL,
        timeout_ms: int = ACKS_TIMEOUT_MS,
    ) -> Appended:
        """Append one batch; return when it is acknowledged as `acks` says."""
        hosted = self._topics.partition(topic, partition)
        hosted.require_leader()
        log = hosted.log
        appended = log.append(batch, leader_epoch=hosted.leader_epoch, now_ms=self._world.now_ms())
        if log.settings.flush is Flush.ACK and acks is not Acks.NONE:
            await self._world.durable(log, appended.next_offset)
        else:
            self._world.appended(log)
        hosted.advance()
        if acks is Acks.ALL and (hosted.high_watermark < appended.next_offset or not hosted.replicas.has_enough):
            await self._replicated(hosted, appended.next_offset, timeout_ms)
        return appended

    async def _replicated(self, hosted: HostedPartition, next_offset: int, timeout_ms: int) -> None:
        """Wait until the in-sync replicas have it. If they do not in time the producer does not know: it is not taken back."""
        deadline = self._world.monotonic() + timeout_ms / 1000
        while True:
            wakeup = self._world.wakeup()
            hosted.watch(wakeup)
            try:
                hosted.require_leader()
                if hosted.high_watermark >= next_offset and hosted.replicas.has_enough:
                    return
                left = deadline - self._world.monotonic()
                if left <= 0 or not await wakeup.wait(left):
                    raise _timed_out(hosted, next_offset, timeout_ms)
            finally:
                hosted.unwatch(wakeup)


def _timed_out(hosted: HostedPartition, next_offset: int, timeout_ms: int) -> BrokerError:
    replicas = hosted.replicas
    return BrokerError(
        Reason.ACKS_TIMED_OUT,
        f"{len(replicas.in_sync)} of {replicas.replication_factor} replicas of {hosted} are in sync "
        f"({replicas.min_in_sync} must be), "
        f"and not all of them have offset {next_offset - 1} after {timeout_ms} ms",
    )
