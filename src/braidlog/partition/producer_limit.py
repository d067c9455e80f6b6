"""How many idempotent producers the open partitions of a node remember, all together, and what is done when they are many.

Knows: counts, silence. Refuses to know: what is remembered of a producer (`storage/producers.py`), who it is.
Invariants: a producer that a partition knows goes on; a new one is refused at the limit. A flood pushes out nobody who wrote
within `SILENT_MS`: no client sends a batch again after so long.

The count is taken anew now and then, and what is new is added meanwhile: partitions that open bring producers along, those
that close or forget give them back, and neither has to say so.
"""

from functools import partial

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.slices import in_slices
from braidlog.model.world import World
from braidlog.partition.hosting import Hosting
from braidlog.storage.partition import PartitionLog

SILENT_MS = 15 * 60 * 1000
COUNT_SECONDS = 10.0
COUNT_SECONDS_MIN = 1.0
"""At the limit, where every new producer asks."""
_ROOM = 7 / 8


class ProducerLimit:
    """One for a node."""

    def __init__(self, hosting: Hosting, world: World, producers_max: int) -> None:
        self._hosting = hosting
        self._world = world
        self._max = producers_max
        self._count = 0
        self._counted_at = float("-inf")

    def count(self) -> int:
        """Count anew."""
        logs = (hosted.open_log for hosted in self._hosting.opened())
        self._count = sum(len(log.state.producers) for log in logs if log is not None)
        self._counted_at = self._world.monotonic()
        return self._count

    def admit(self, log: PartitionLog, producer_id: int) -> None:
        """Refuse a producer that `log` does not know, if there are too many."""
        if log.state.producers.find(producer_id) is not None:
            return
        is_full = self._count >= self._max
        if self._world.monotonic() - self._counted_at >= (COUNT_SECONDS_MIN if is_full else COUNT_SECONDS):
            is_full = self.count() >= self._max
        if is_full:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"the partitions of this node remember {self._max} idempotent producers and no more: use producers for longer, "
                "lower the topics' producer_expiry_ms, or raise state.producers_max",
            )
        self._count += 1

    async def make_room(self) -> None:
        """Where they are nearly too many, those that have been silent for a while are forgotten before their time."""
        if self.count() < self._max * _ROOM:
            return
        async for hosted in in_slices(self._hosting.opened()):
            if (log := hosted.open_log) is not None and len(log.state.producers):
                await self._world.blocking(partial(log.expire_producers, self._world.now_ms(), silent_ms_max=SILENT_MS))
        self.count()
