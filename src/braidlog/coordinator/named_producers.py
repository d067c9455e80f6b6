"""Producers that name themselves: a word and an epoch of their own instead of an id that was given to them.

Knows: which id and epoch of the log stands for which name and foreign epoch. Refuses to know: sequences, dialects.
Invariants: a name keeps its id across restarts, and a mapping is durable before its first use: else a retry after a crash would
be a stranger, and stored twice. A higher foreign epoch is the next epoch of the log; a lower one is fenced.
"""

import msgspec

from braidlog.coordinator.holdings import NODE, Holdings, StateKind
from braidlog.coordinator.journal import NOTHING, Table
from braidlog.coordinator.producer_ids import ProducerIds
from braidlog.model.clock import SteadyClock
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX
from braidlog.model.slices import in_slices
from braidlog.model.turns import Turns
from braidlog.model.world import World

UNUSED_MS_MAX = 7 * 24 * 3600 * 1000
"""A name that nobody used for so long is forgotten: if it comes back it is a new producer, whose old retries are not known."""
EPOCH_MAX = 2**15 - 1


class NamedProducer(msgspec.Struct, frozen=True):
    """What stands for a name: `foreign_epoch` is the producer's own, up to 64 bits wide; `epoch` is the log's."""

    producer_id: int
    epoch: int
    foreign_epoch: int


def current(known: NamedProducer | None, name: str, foreign_epoch: int) -> NamedProducer | None:
    """What is known of a name, if it is of this epoch; None if the epoch is new. Raises if it is over."""
    if known is None or known.foreign_epoch < foreign_epoch:
        return None
    if known.foreign_epoch > foreign_epoch:
        raise BrokerError(
            Reason.STALE_PRODUCER_EPOCH,
            f"producer {name[:60]!r} epoch {foreign_epoch} was fenced by epoch {known.foreign_epoch}",
        )
    return known


class NamedProducers:
    """The use case."""

    def __init__(self, table: Table, ids: ProducerIds, world: World, holdings: Holdings) -> None:
        self._table = table
        self._ids = ids
        self._holdings = holdings
        self._turns = Turns(world)
        self._steady = SteadyClock(world)
        self._used_ms = {str(name): self._steady.now_ms() for (name,), _ in table.items()}
        """When each was last used; of an earlier run nothing is known, so that each has its time from the start of this one."""

    async def resolve(self, name: str, foreign_epoch: int, *, by: str = NODE) -> NamedProducer:
        """The id and epoch to write with, for the principal `by`. Raises if a newer producer of the same name is known."""
        known = self._current(name, foreign_epoch)
        if known is not None:
            self._used_ms[name] = self._steady.now_ms()
        if known is not None and not self._turns.is_held(name):
            return known  # nearly always: no wait, so that requests stay in the order they came
        async with self._turns.take(name):
            with self._holdings.admitted(StateKind.NAMED_PRODUCERS, name, by):
                return self._current(name, foreign_epoch) or await self._begin(name, foreign_epoch)

    def _current(self, name: str, foreign_epoch: int) -> NamedProducer | None:
        return current(self._table.get(name), name, foreign_epoch)

    async def _begin(self, name: str, foreign_epoch: int) -> NamedProducer:
        if not 1 <= len(name) <= NAME_CHARS_MAX:
            raise BrokerError(
                Reason.INVALID_RECORD, f"a producer's name has 1 to {NAME_CHARS_MAX} characters, not {len(name)}"
            )
        known: NamedProducer | None = self._table.get(name)
        if known is None or known.epoch >= EPOCH_MAX:
            chosen = NamedProducer(await self._ids.take(), 0, foreign_epoch)
        else:
            chosen = NamedProducer(known.producer_id, known.epoch + 1, foreign_epoch)
        mark = self._table.put(name, value=chosen)
        self._used_ms[name] = self._steady.now_ms()
        await self._table.journal.settled(mark)
        return chosen

    async def expire(self) -> list[str]:
        """Forget names that nobody used for long."""
        before_ms = self._steady.now_ms() - UNUSED_MS_MAX
        gone, mark = [], NOTHING
        async for name in in_slices(self._used_ms):
            if self._used_ms[name] < before_ms and not self._turns.is_held(name):
                mark = self._table.drop(name)
                del self._used_ms[name]
                gone.append(name)
        await self._table.journal.settled(mark)
        return gone
