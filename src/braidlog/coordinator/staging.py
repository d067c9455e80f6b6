"""Batches that count once: records are staged by many tasks, and one decision makes all of them count, or none.

Knows: the last batch of each sink, and whose stages are whose. Refuses to know: records, engines, any dialect.
Invariants: a stage is an open transaction of its own id (`model/stages.py`), so that no reader of committed records sees it
before the decision; that all stages of a batch commit and that the batch is its sink's last is one entry of the journal, durable
before the first marker; a batch that is not above its sink's last never counts again, whatever is handed in for it; what a
decision leaves open of its sink (a losing attempt's, a dead driver's) is aborted by it, so that no reader waits for it.
One request of a sink at a time.
"""

from collections.abc import Sequence

import msgspec

from braidlog.coordinator.holdings import Holdings, StateKind
from braidlog.coordinator.journal import Table
from braidlog.coordinator.transaction import Producing
from braidlog.coordinator.transactions import Transactions
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.slices import in_slices
from braidlog.model.stages import StageName, check_batch_id, check_sink, read_stage_name
from braidlog.model.turns import Turns
from braidlog.model.world import World

UNUSED_MS_MAX = 30 * 24 * 3600 * 1000
"""A sink that committed nothing for so long is forgotten: a batch of it that is replayed after that counts again."""
STAGES_MAX = 10_000
"""Of one batch: so many tasks."""
NO_BATCH = -1
NOT_OPEN = (
    Reason.TRANSACTION_NOT_FOUND,
    Reason.PRODUCER_ID_MISMATCH,
    Reason.STALE_PRODUCER_EPOCH,
    Reason.INVALID_TRANSACTION_STATE,
)
"""Why a transaction that is handed in as a stage is none (any more)."""
_WHY = " (a stage ends by its timeout, by an abort, or when its task is begun again under the same name)"


class Sink(msgspec.Struct, frozen=True):
    """What is remembered of a sink."""

    last_batch: int
    owner: str
    """The principal who committed first. For anybody else this name is taken: whoever moves `last_batch` decides what is
    thrown away as a replay."""
    writer: str = ""
    """Which run of batch ids it was (a query's id), if it was told: another one numbers other batches."""
    used_ms: int = 0


class Decided(msgspec.Struct, frozen=True):
    """How a request to commit or to abort ended."""

    last_batch: int
    already: bool
    """Whether the batch had been committed before, and nothing that was handed in counts."""


class Staging:
    """The use case."""

    def __init__(self, table: Table, transactions: Transactions, world: World, holdings: Holdings) -> None:
        self._table = table
        self._holdings = holdings
        self._transactions = transactions
        self._world = world
        self._turns = Turns(world)

    def last_batch(self, sink: str, *, owner: str, writer: str = "") -> int:
        """The last batch that counts, NO_BATCH if none does."""
        known = self._find(sink, owner, writer)
        return NO_BATCH if known is None else known.last_batch

    def names(self) -> list[str]:
        return sorted(str(key[0]) for key, _ in self._table.items())

    async def commit(
        self, sink: str, batch_id: int, stages: Sequence[Producing], *, owner: str, writer: str = ""
    ) -> Decided:
        """Let a batch count: all of its stages, or, if one of them is not open any more, none.

        A batch that counts already stays as it is, and the stages that are handed in are a replay's: they are aborted.
        """
        check_batch_id(batch_id)
        if len(stages) > STAGES_MAX:
            raise _refused(f"a batch has at most {STAGES_MAX} stages, not {len(stages)}")
        _check_stages(sink, batch_id, stages)
        async with self._turns.take(sink):
            known = self._find(sink, owner, writer)
            if known is not None and batch_id <= known.last_batch:
                await self._drop(sink, batch_id, stages)
                return Decided(known.last_batch, already=True)
            kept = {each.name for each in stages}
            left = [name for name in self._left_open(sink, batch_id) if name not in kept]
            last = Sink(batch_id, owner, writer, self._world.now_ms())
            try:
                with self._holdings.admitted(StateKind.SINKS, sink, owner):
                    await self._transactions.end_together(stages, left, [(self._table, (sink,), last)])
            except BrokerError as error:
                if error.reason not in NOT_OPEN:
                    raise
                raise BrokerError(
                    error.reason, f"nothing of batch {batch_id} of sink {sink!r} counts: {error}{_WHY}"
                ) from error
            return Decided(batch_id, already=False)

    async def abort(
        self, sink: str, batch_id: int, stages: Sequence[Producing] | None = None, *, owner: str
    ) -> Decided:
        """Let stages go: those that are named or, with None, all that are open of this batch and those before it.

        What counts is no open stage any more: an abort that comes after a commit undoes nothing.
        """
        check_batch_id(batch_id)
        _check_stages(sink, batch_id, stages or ())
        async with self._turns.take(sink):
            known = self._find(sink, owner)
            await self._drop(sink, batch_id, stages)
            last = NO_BATCH if known is None else known.last_batch
            return Decided(last, already=batch_id <= last)

    async def _drop(self, sink: str, batch_id: int, stages: Sequence[Producing] | None) -> None:
        """Abort what is open of these. What was decided, if a crash or a fault left it so, is carried out as it was decided."""
        if stages is None:
            await self._transactions.end_together([], self._left_open(sink, batch_id))
            return
        await self._transactions.end_together([], [each.name for each in stages if self._is_open(each)])
        await self._transactions.finish([each.name for each in stages])

    def _is_open(self, stage: Producing) -> bool:
        try:
            self._transactions.require_ongoing(*stage)
        except BrokerError:  # ended, fenced or never begun: there is nothing to let go
            return False
        return True

    def _left_open(self, sink: str, batch_id: int) -> list[str]:
        def is_of(stage: StageName | None) -> bool:
            return stage is not None and stage.sink == sink and stage.batch_id <= batch_id

        return [name for name in self._transactions.open_names() if is_of(read_stage_name(name))]

    def _find(self, sink: str, owner: str, writer: str = "") -> Sink | None:
        check_sink(sink)
        known: Sink | None = self._table.get(sink)
        if known is not None and known.owner != owner:
            raise BrokerError(Reason.NOT_AUTHORIZED, f"sink {sink!r} is another user's")
        if known is not None and writer and known.writer and writer != known.writer:
            # Its numbers are others: what it takes for a new batch would be thrown away as a replay, in silence.
            raise _refused(
                f"sink {sink!r} has batches up to {known.last_batch} of {known.writer}, and {writer} numbers its own "
                "(a new checkpoint?): give it another sinkId"
            )
        return known

    async def expire(self) -> list[str]:
        """Forget sinks that nobody committed to for long."""
        forgotten = []
        async for (word, *_), seen in in_slices(self._table.items()):
            sink = str(word)
            if self._is_unused(seen):
                async with self._turns.take(sink):
                    found: Sink | None = self._table.get(sink)  # again: it may have moved while this waited
                    if found is not None and self._is_unused(found):
                        await self._table.journal.settled(self._table.drop(sink))
                        forgotten.append(sink)
        return forgotten

    def _is_unused(self, found: Sink) -> bool:
        return self._world.now_ms() - found.used_ms > UNUSED_MS_MAX


def _check_stages(sink: str, batch_id: int, stages: Sequence[Producing]) -> None:
    """Nobody decides about transactions that were not made for this batch."""
    if len({each.name for each in stages}) != len(stages):
        raise _refused("a stage is handed in twice")
    for each in stages:
        found = read_stage_name(each.name)
        if found is None or (found.sink, found.batch_id) != (sink, batch_id):
            raise _refused(f"{each.name[:80]!r} is no stage of batch {batch_id} of sink {sink[:60]!r}")


def _refused(text: str) -> BrokerError:
    return BrokerError(Reason.INVALID_TRANSACTION_STATE, text)
