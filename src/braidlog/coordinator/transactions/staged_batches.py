"""Exactly-once batches: tasks stage records, and one decision commits all of them or none.

Invariants: a stage is an open transaction with its own id (`model/stage_ids.py`), so read-committed consumers do not see
it before the decision. One durable journal entry commits all stages of a batch and records the batch as its sink's
last, before the first marker. A batch that is not above its sink's last never commits again. A decision aborts other
open stages of its sink, from losing attempts or dead drivers, so that no reader waits for them. Each sink has one
request at a time.
"""

from collections.abc import Sequence

import msgspec

from braidlog.coordinator.journal import Table
from braidlog.coordinator.state_limits import StateKind, StateUsage
from braidlog.coordinator.transactions.transaction import ProducerIdentity
from braidlog.coordinator.transactions.transactions import Transactions
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.cooperative import in_slices
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.model.stage_ids import StageName, check_batch_id, check_sink, read_stage_name

UNUSED_MS_MAX = 30 * 24 * 3600 * 1000
"""A sink without commits for this time is deleted; a batch replayed after that commits again."""
STAGES_MAX = 10_000
"""Maximum number of stages, one per task, in a batch."""
NO_BATCH = -1
NOT_OPEN = (
    Reason.TRANSACTION_NOT_FOUND,
    Reason.PRODUCER_ID_MISMATCH,
    Reason.STALE_PRODUCER_EPOCH,
    Reason.INVALID_TRANSACTION_STATE,
)
"""Why a transaction is not (or no longer) a valid stage."""
_WHY = " (a stage ends by its timeout, by an abort, or when its task restarts under the same name)"


class Sink(msgspec.Struct, frozen=True):
    """Stored state of a sink."""

    last_batch: int
    owner: str
    """The principal of the first commit. No other principal may use the sink: `last_batch` decides which batches are
    dropped as replays.
    """
    writer: str = ""
    """Id of the run (a query's id) that numbers the batches, if known; another run has other numbers."""
    used_ms: int = 0


class Decided(msgspec.Struct, frozen=True):
    """Outcome of a commit or abort request."""

    last_batch: int
    already: bool
    """Whether the batch was committed before, so that the given stages were dropped."""


class Staging:
    """Operations of staged batches."""

    def __init__(self, table: Table, transactions: Transactions, runtime: Runtime, holdings: StateUsage) -> None:
        self._table = table
        self._holdings = holdings
        self._transactions = transactions
        self._runtime = runtime
        self._turns = KeyedLock(runtime)

    def last_batch(self, sink: str, *, owner: str, writer: str = "") -> int:
        """The last committed batch; NO_BATCH if there is none."""
        known = self._find(sink, owner, writer)
        return NO_BATCH if known is None else known.last_batch

    def names(self) -> list[str]:
        return sorted(str(key[0]) for key, _ in self._table.items())

    async def commit(
        self, sink: str, batch_id: int, stages: Sequence[ProducerIdentity], *, owner: str, writer: str = ""
    ) -> Decided:
        """Commit all stages of a batch, or none if one of them is no longer open.

        A batch that is already committed stays unchanged, and the given stages of the replay are aborted.
        """
        check_batch_id(batch_id)
        if len(stages) > STAGES_MAX:
            raise _refused(f"a batch has at most {STAGES_MAX} stages, not {len(stages)}")
        _check_stages(sink, batch_id, stages)
        async with self._turns.acquire(sink):
            known = self._find(sink, owner, writer)
            if known is not None and batch_id <= known.last_batch:
                await self._drop(sink, batch_id, stages)
                return Decided(known.last_batch, already=True)
            kept = {each.name for each in stages}
            left = [name for name in self._left_open(sink, batch_id) if name not in kept]
            last = Sink(batch_id, owner, writer, self._runtime.now_ms())
            try:
                with self._holdings.admit(StateKind.SINKS, sink, owner):
                    await self._transactions.end_atomically(stages, left, [(self._table, (sink,), last)])
            except BrokerError as error:
                if error.reason not in NOT_OPEN:
                    raise
                raise BrokerError(
                    error.reason, f"batch {batch_id} of sink {sink!r} was not committed: {error}{_WHY}"
                ) from error
            return Decided(batch_id, already=False)

    async def abort(
        self, sink: str, batch_id: int, stages: Sequence[ProducerIdentity] | None = None, *, owner: str
    ) -> Decided:
        """Abort the given stages or, with None, all open ones of this batch and earlier ones.

        An abort after a commit has no effect, because committed stages are no longer open.
        """
        check_batch_id(batch_id)
        _check_stages(sink, batch_id, stages or ())
        async with self._turns.acquire(sink):
            known = self._find(sink, owner)
            await self._drop(sink, batch_id, stages)
            last = NO_BATCH if known is None else known.last_batch
            return Decided(last, already=batch_id <= last)

    async def _drop(self, sink: str, batch_id: int, stages: Sequence[ProducerIdentity] | None) -> None:
        """Abort open stages. A decision that a crash or fault interrupted is carried out as decided."""
        if stages is None:
            await self._transactions.end_atomically([], self._left_open(sink, batch_id))
            return
        await self._transactions.end_atomically([], [each.name for each in stages if self._is_open(each)])
        await self._transactions.finish([each.name for each in stages])

    def _is_open(self, stage: ProducerIdentity) -> bool:
        try:
            self._transactions.require_ongoing(*stage)
        except BrokerError:  # ended, fenced or never begun: nothing to abort
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
            raise BrokerError(Reason.NOT_AUTHORIZED, f"sink {sink!r} belongs to another user")
        if known is not None and writer and known.writer and writer != known.writer:
            # The numbers differ: a new batch of that run would be dropped silently as a replay.
            raise _refused(
                f"sink {sink!r} has batches up to {known.last_batch} of {known.writer}; {writer} has its own numbers "
                "(a new checkpoint?): give it another sinkId"
            )
        return known

    async def expire(self) -> list[str]:
        """Delete sinks without commits for a long time."""
        forgotten = []
        async for (word, *_), seen in in_slices(self._table.items()):
            sink = str(word)
            if self._is_unused(seen):
                async with self._turns.acquire(sink):
                    found: Sink | None = self._table.get(sink)  # checked again, as it may have changed during the wait
                    if found is not None and self._is_unused(found):
                        await self._table.journal.wait_committed(self._table.drop(sink))
                        forgotten.append(sink)
        return forgotten

    def _is_unused(self, found: Sink) -> bool:
        return self._runtime.now_ms() - found.used_ms > UNUSED_MS_MAX


def _check_stages(sink: str, batch_id: int, stages: Sequence[ProducerIdentity]) -> None:
    """Raise for transactions that do not belong to this batch."""
    if len({each.name for each in stages}) != len(stages):
        raise _refused("duplicate stage")
    for each in stages:
        found = read_stage_name(each.name)
        if found is None or (found.sink, found.batch_id) != (sink, batch_id):
            raise _refused(f"{each.name[:80]!r} is not a stage of batch {batch_id} of sink {sink[:60]!r}")


def _refused(text: str) -> BrokerError:
    return BrokerError(Reason.INVALID_TRANSACTION_STATE, text)
