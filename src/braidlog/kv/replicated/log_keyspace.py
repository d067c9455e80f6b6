"""The keys of one replicated log: its state machine, the same on the leader and on followers.

Does not handle: storage of the log, leadership, commits (a follower's owner applies only committed records, the
leader's all).
Invariants: the state depends only on the applied records and their order. Each mutation that is not salvaged has
a greater stamp than everything before it in the log. A key is deleted only by a record, never by a clock.

Deleted keys keep their stamps, and salvaged mutations their origins, for `delete_retention_ms` after their stamp,
measured by the stamps of the log. A mutation salvaged after that is refused (`TOO_OLD`), so dropped stamps are
never needed.
"""

import heapq
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from braidlog.kv.engine.hybrid_clock import HybridClock, Stamp
from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.engine.operations import Columns, Level, Operation
from braidlog.kv.engine.settings import Eviction, KeyValueSettings
from braidlog.kv.engine.store import Mutation, Store
from braidlog.kv.engine.values import ListValue
from braidlog.kv.feed.feed_records import Watcher
from braidlog.kv.replicated.log_records import Origin, RecordBatch, SlotRecord, element_digest, last_change, with_change
from braidlog.kv.wal.wal_entries import REPLACES, Op
from braidlog.model.errors import StorageFault

R = TypeVar("R")
EPOCHS_MAX = 1_000
_HEAP_SLACK = 64
DELETE_RETENTION_MS = 24 * 3600 * 1000


class SlotLog(Protocol):
    """The log to which the leader's mutations are written."""

    def append(self, record: SlotRecord) -> int:
        """Append a record; return the offset after it. Raises if it is refused; then nothing is written."""
        ...

    def append_parts(self, parts: Sequence[tuple[bytes | None, bytes]]) -> int:
        """Append the records of a checkpoint, with their keys, in one batch."""
        ...

    def batch(self, wall_ms: int) -> RecordBatch:
        """Return the batch that the log gathers, with space in it. Raises if an append would be refused now."""
        ...

    def holds(self, origin: Origin) -> bool | None:
        """Return whether this log holds the record of that epoch and offset; None if that part of the log is
        deleted."""
        ...

    def epochs(self) -> Sequence[tuple[int, int]]:
        """Return the epochs that wrote to this log, as far as known, ascending: epoch, first offset."""
        ...


class UnderWay(Protocol):
    """A checkpoint that the slot's leader is writing (kv/replicated/checkpoints.py)."""

    def before(self, op: Op, key: bytes) -> None:
        """Called before a change of the key is written."""
        ...

    def before_rows(self, columns: Columns, rows: Sequence[int]) -> None:
        """Called before plain changes of these rows may be written."""
        ...


class KeyListener(Protocol):
    """Is called with the keys that have changed (kv/replicated/anti_entropy.py)."""

    @property
    def next_mark(self) -> int:
        """Return the offset at which a run of records must end, so that the state at that offset is observed."""
        ...

    def changed(self, keys: Iterable[bytes]) -> None:
        """Called with the keys changed by the records below `applied`."""
        ...


class _StampedLog:
    """A slot's log as a store's mutation log (kv/engine/mutation_log.py)."""

    fault: StorageFault | None = None

    def __init__(self, slot: "LogKeyspace") -> None:
        self._slot = slot
        self.level = Level.QUORUM

    def append(self, op: int, key: bytes, argument: bytes, ttl_seconds: int, stamp: tuple[int, int]) -> int:
        kind, slot = Op(op), self._slot
        if slot.checkpoint is not None:
            slot.checkpoint.before(kind, key)
        if kind in (Op.LPOP, Op.RPOP):
            held = slot.keyspace.data[key]
            assert isinstance(held, ListValue)
            argument = element_digest(held.items[0 if kind is Op.LPOP else -1])
        stamped = Stamp(*stamp, slot.clock.node)
        return slot.log.append(SlotRecord(kind, key, argument, ttl_seconds, self.level, stamped))


class LogKeyspace:
    """`execute` on the leader, `apply` and `read` on followers. Not thread-safe: one thread uses it."""

    def __init__(
        self,
        clock: HybridClock,
        log: SlotLog,
        settings: KeyValueSettings,
        *,
        begins_at: int = 0,
        delete_retention_ms: int = DELETE_RETENTION_MS,
    ) -> None:
        """`clock`: the node's, shared by all its logs."""
        self.begins_at = begins_at
        """The offset of the first applied record: the log's first, or a checkpoint's beginning."""
        self.is_complete = begins_at == 0
        """Whether all keys are present. If not, they are once the checkpoint at the log's beginning is applied
        completely."""
        self.checkpoint: UnderWay | None = None
        self.epochs: tuple[tuple[int, int], ...] = ()
        """The epochs that wrote to the log before its last checkpoint: they show whether it held a deleted record."""
        self.keyspace = Keyspace(recency=settings.eviction is Eviction.LRU)
        self.clock = clock
        self.log = log
        self.delete_retention_ms = delete_retention_ms
        self.stamps: dict[bytes, bytes] = {}
        """When each key last changed (log_records.py), including recently deleted keys."""
        self.origins: dict[Origin, int] = {}
        """Recently salvaged mutations → the wall time of their stamps."""
        self.listeners: list[KeyListener] = []
        self.watcher: Watcher | None = None
        self.gone: dict[bytes, int] = {}
        """Recently deleted keys → the wall time of their deletion."""
        self.latest_ms = 0
        """The greatest wall time of the log."""
        self._gone_by_time: list[tuple[int, bytes]] = []
        self._origins_by_time: list[tuple[int, Origin]] = []
        keyspace = self.keyspace
        self.containers: tuple[Any, ...] = (
            keyspace.data, keyspace.deadlines, keyspace.recency, self.stamps, self.gone, self._gone_by_time
        )  # fmt: skip
        """The containers that the kernel reads and changes."""
        self._stamped = _StampedLog(self)
        self.store = Store(
            self._stamped, self.keyspace, self.clock, settings, sequence=begins_at, listener=self._mutated
        )

    @property
    def applied(self) -> int:
        """The offset after the last applied record."""
        return self.store.sequence

    def stamp_of(self, key: bytes) -> Stamp | None:
        """Return the stamp of a key's last change, including its deletion."""
        known = self.stamps.get(key)
        return None if known is None else last_change(known)

    def restamp(self, key: bytes, stamp: Stamp | None) -> None:
        """Set when a repaired key was last changed (kv/replicated/anti_entropy.py); None: the key does not exist on
        the leader."""
        self.gone.pop(key, None)
        if stamp is None:
            self.stamps.pop(key, None)
        else:
            self.stamps[key] = stamp.pack()

    # -- on the leader -----------------------------------------------------------------------------------------

    def execute(self, operation: Operation[R], level: Level, now_ms: int) -> R:
        """Execute an operation without waiting. An expired key is deleted first, by a record, even by a read."""
        self._stamped.level = level
        self.store.expire_if_due(operation.key, now_ms)
        return self.store.execute(operation, now_ms)

    def expire(self, now_ms: int, count_max: int) -> int:
        self._stamped.level = Level.QUORUM
        return self.store.expire(now_ms, count_max)

    def _mutated(self, mutation: Mutation) -> None:
        stamp = Stamp(mutation.wall_ms, mutation.counter, self.clock.node)
        self._note(Op(mutation.op), mutation.key, stamp, mutation.argument)

    def salvage_record(self, record: SlotRecord) -> None:
        """Write and apply a salvaged mutation. The caller has decided that it counts (kv/replicated/salvage.py)."""
        assert record.origin is not None
        if self.checkpoint is not None:
            self.checkpoint.before(record.op, record.key)
        self.apply(self.log.append(record) - 1, record)

    def append_parts(self, parts: Sequence[tuple[bytes | None, bytes]]) -> int:
        """Write records of a checkpoint; they change nothing in this state."""
        self.store.sequence = self.log.append_parts(parts)
        return self.store.sequence

    # -- on followers, and for records already in the log --------------------------------------------------------

    def apply(self, offset: int, record: SlotRecord) -> None:
        """Apply the next record of the log."""
        # A key deleted on both sides of a network partition is deleted once; the later stamp is kept.
        if record.origin is None or record.op is not Op.DEL or record.key in self.keyspace.data:
            self.keyspace.apply(record.op, record.key, record.argument, record.ttl_seconds, record.stamp.wall_ms)
        self.observe(record.stamp)
        if record.origin is not None:
            self.remember_origin(record.origin, record.stamp.wall_ms)
        self.store.sequence = offset + 1
        self._note(record.op, record.key, record.stamp, record.argument)

    def epochs_until_now(self) -> tuple[tuple[int, int], ...]:
        known = dict(self.epochs)
        self.epochs = tuple(sorted((dict(self.log.epochs()) | known).items()))[-EPOCHS_MAX:]
        return self.epochs

    def passed(self, offset: int) -> None:
        """Skip a record that changes nothing in this state."""
        self.store.sequence = offset + 1

    def observe(self, stamp: Stamp) -> None:
        """Advance the clock. A stamp is never refused here: it is in the log, or from this node."""
        self.clock.advance_past(stamp)

    def read(self, operation: Operation[R], now_ms: int) -> R:
        """Execute a read on a follower. An expired key exists until the leader's record deletes it."""
        deadline_ms = self.keyspace.deadlines.get(operation.key)
        return self.store.read(operation, now_ms if deadline_ms is None else min(now_ms, deadline_ms - 1))

    # -- many in one call (log_columns.py) ------------------------------------------------------------------------

    @property
    def takes_columns(self) -> bool:
        """Return whether records may be applied in runs: the first record shows whether keys are missing, and a
        watcher needs each one."""
        return self.watcher is None and (self.is_complete or self.applied > self.begins_at)

    @property
    def until_mark(self) -> int:
        """Return how many records may be applied in one run; one, after a mark that a checkpoint has passed."""
        if not self.listeners:
            return sys.maxsize
        return max(min(each.next_mark - self.applied for each in self.listeners), 1)

    @property
    def forgets_at_ms(self) -> int:
        """Return the wall time of the record after which a deletion is dropped."""
        gone = self._gone_by_time
        return gone[0][0] + self.delete_retention_ms if gone else sys.maxsize

    def after_run(self, wall_ms: int) -> None:
        """Update the state after a run whose last record has that wall time."""
        self.latest_ms = max(self.latest_ms, wall_ms)
        if self._gone_by_time or self._origins_by_time:
            self._drop_returned()
            self._forget()

    # -- stamps ------------------------------------------------------------------------------------------------

    def _note(self, op: Op, key: bytes, stamp: Stamp, argument: bytes) -> None:
        self.stamps[key] = with_change(self.stamps.get(key), stamp, replaces=op in REPLACES)
        self.latest_ms = max(self.latest_ms, stamp.wall_ms)
        self.gone.pop(key, None)
        if key not in self.keyspace.data:
            self.record_deletion(key, stamp.wall_ms)
        self._forget()
        for listener in self.listeners:
            listener.changed((key,))
        if self.watcher is not None:
            argument = b"" if op in (Op.LPOP, Op.RPOP) else argument
            value, deadline_ms = self.keyspace.data.get(key), self.keyspace.deadlines.get(key, 0)
            mutation = Mutation(self.applied, *stamp[:2], op, key, argument, value, deadline_ms)
            self.watcher.changed(mutation, stamp.node)

    def record_deletion(self, key: bytes, wall_ms: int) -> None:
        self.gone[key] = wall_ms
        heapq.heappush(self._gone_by_time, (wall_ms, key))
        self._drop_returned()

    def _drop_returned(self) -> None:
        """Rebuild the heap of deletions when keys that exist again are most of it."""
        if len(self._gone_by_time) > 2 * len(self.gone) + _HEAP_SLACK:
            self._gone_by_time[:] = sorted((wall_ms, key) for key, wall_ms in self.gone.items())

    def remember_origin(self, origin: Origin, wall_ms: int) -> None:
        self.origins[origin] = wall_ms
        heapq.heappush(self._origins_by_time, (wall_ms, origin))

    def _forget(self) -> None:
        """Drop old deletions and origins by the stamps of the log alone, in any order, so that all replicas drop the
        same."""
        until_ms = self.latest_ms - self.delete_retention_ms
        gone, origins = self._gone_by_time, self._origins_by_time
        while gone and gone[0][0] <= until_ms:
            wall_ms, key = heapq.heappop(gone)
            if self.gone.get(key) == wall_ms:
                del self.gone[key], self.stamps[key]
        while origins and origins[0][0] <= until_ms:
            self.origins.pop(heapq.heappop(origins)[1], None)
