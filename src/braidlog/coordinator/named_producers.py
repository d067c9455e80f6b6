"""Producers that name themselves: a word and an epoch of their own instead of an id that was given to them.

Knows: which id and epoch of the log stands for which name and foreign epoch. Refuses to know: sequences, dialects.
Invariants: a name keeps its id across restarts, and a mapping is durable before its first use: else a retry after a crash would
be a stranger, and stored twice. A higher foreign epoch is the next epoch of the log; a lower one is fenced.
"""

import msgspec

from braidlog.coordinator.journal import Table
from braidlog.coordinator.producer_ids import ProducerIds
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX
from braidlog.model.turns import Turns
from braidlog.model.world import World

NAMES_MAX = 100_000
EPOCH_MAX = 2**15 - 1


class NamedProducer(msgspec.Struct, frozen=True):
    """What stands for a name: `foreign_epoch` is the producer's own, up to 64 bits wide; `epoch` is the log's."""

    producer_id: int
    epoch: int
    foreign_epoch: int


class NamedProducers:
    """The use case."""

    def __init__(self, table: Table, ids: ProducerIds, world: World) -> None:
        self._table = table
        self._ids = ids
        self._turns = Turns(world)

    async def resolve(self, name: str, foreign_epoch: int) -> NamedProducer:
        """The id and epoch to write with. Raises if a newer producer of the same name is known."""
        known = self._current(name, foreign_epoch)
        if known is not None and not self._turns.is_held(name):
            return known  # nearly always: no wait, so that requests stay in the order they came
        async with self._turns.take(name):
            return self._current(name, foreign_epoch) or await self._begin(name, foreign_epoch)

    def _current(self, name: str, foreign_epoch: int) -> NamedProducer | None:
        known: NamedProducer | None = self._table.get(name)
        if known is None or known.foreign_epoch < foreign_epoch:
            return None
        if known.foreign_epoch > foreign_epoch:
            raise BrokerError(
                Reason.STALE_PRODUCER_EPOCH,
                f"producer {name[:60]!r} epoch {foreign_epoch} was fenced by epoch {known.foreign_epoch}",
            )
        return known

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
        self._make_room()
        await self._table.journal.settled(self._table.put(name, value=chosen))
        return chosen

    def _make_room(self) -> None:
        """Forget the one that began longest ago. If it comes back it is a new producer: its old retries are not known."""
        if len(self._table.values) >= NAMES_MAX:
            oldest = next(iter(self._table.values))
            self._table.drop(*oldest[1:])
