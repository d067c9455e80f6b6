"""Self-named producers: a name and a client-chosen epoch instead of an assigned producer id.

Invariants: a name keeps its id across restarts. A mapping is durable before its first use; otherwise a retry after a
crash would be stored twice. A higher client epoch maps to the next log epoch; a lower one is fenced.
"""

import msgspec

from braidlog.coordinator.journal import NOTHING, Table
from braidlog.coordinator.state_limits import NODE, StateKind, StateUsage
from braidlog.coordinator.transactions.producer_ids import ProducerIds
from braidlog.model.clock import SteadyClock
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX
from braidlog.model.runtime.cooperative import in_slices
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime

UNUSED_MS_MAX = 7 * 24 * 3600 * 1000
"""A name unused for this time is deleted. If it returns it is a new producer, and old retries are not recognized."""
EPOCH_MAX = 2**15 - 1


class NamedProducer(msgspec.Struct, frozen=True):
    """The log's producer of a name. `foreign_epoch` is the client's own, up to 64 bits; `epoch` is the log's."""

    producer_id: int
    epoch: int
    foreign_epoch: int


def current(known: NamedProducer | None, name: str, foreign_epoch: int) -> NamedProducer | None:
    """The producer of a name, if it has this epoch; None if the epoch is new. Raises if the epoch was fenced."""
    if known is None or known.foreign_epoch < foreign_epoch:
        return None
    if known.foreign_epoch > foreign_epoch:
        raise BrokerError(
            Reason.STALE_PRODUCER_EPOCH,
            f"producer {name[:60]!r} epoch {foreign_epoch} was fenced by epoch {known.foreign_epoch}",
        )
    return known


class NamedProducers:
    """Operations of self-named producers."""

    def __init__(self, table: Table, ids: ProducerIds, runtime: Runtime, holdings: StateUsage) -> None:
        self._table = table
        self._ids = ids
        self._holdings = holdings
        self._turns = KeyedLock(runtime)
        self._steady = SteadyClock(runtime)
        self._used_ms = {str(name): self._steady.now_ms() for (name,), _ in table.items()}
        """When each name was last used. Names of an earlier run count from the start of this one."""

    async def resolve(self, name: str, foreign_epoch: int, *, by: str = NODE) -> NamedProducer:
        """The producer id and epoch to write with, for the principal `by`. Raises if a newer producer of this name
        exists.
        """
        known = self._current(name, foreign_epoch)
        if known is not None:
            self._used_ms[name] = self._steady.now_ms()
        if known is not None and not self._turns.is_held(name):
            return known  # the common case: without a wait, requests keep their order
        async with self._turns.acquire(name):
            with self._holdings.admit(StateKind.NAMED_PRODUCERS, name, by):
                return self._current(name, foreign_epoch) or await self._begin(name, foreign_epoch)

    def _current(self, name: str, foreign_epoch: int) -> NamedProducer | None:
        return current(self._table.get(name), name, foreign_epoch)

    async def _begin(self, name: str, foreign_epoch: int) -> NamedProducer:
        if not 1 <= len(name) <= NAME_CHARS_MAX:
            raise BrokerError(
                Reason.INVALID_RECORD, f"a producer's name must have 1 to {NAME_CHARS_MAX} characters, not {len(name)}"
            )
        known: NamedProducer | None = self._table.get(name)
        if known is None or known.epoch >= EPOCH_MAX:
            chosen = NamedProducer(await self._ids.allocate(), 0, foreign_epoch)
        else:
            chosen = NamedProducer(known.producer_id, known.epoch + 1, foreign_epoch)
        mark = self._table.put(name, value=chosen)
        self._used_ms[name] = self._steady.now_ms()
        await self._table.journal.wait_committed(mark)
        return chosen

    async def expire(self) -> list[str]:
        """Delete names that were unused for too long; returns them."""
        before_ms = self._steady.now_ms() - UNUSED_MS_MAX
        expired, mark = [], NOTHING
        async for name in in_slices(self._used_ms):
            if self._used_ms[name] < before_ms and not self._turns.is_held(name):
                mark = self._table.drop(name)
                del self._used_ms[name]
                expired.append(name)
        await self._table.journal.wait_committed(mark)
        return expired
