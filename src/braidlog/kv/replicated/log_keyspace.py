"""The keys of one log: a keyspace that is made by a replicated log, on the leader and on followers alike.

Knows: what each record makes of the keys, when each key last changed, what was salvaged. Refuses to know: where the log is, who
leads, what is committed (its owner applies no more than that on a follower, and all of the log on the leader).
Invariants: the state depends on nothing but the records applied, in their order; each mutation that is not salvaged has a greater
stamp than everything before it in the log; a key goes by a record only, never by a clock.

Keys that are gone keep their stamps, and salvaged mutations their origins, for `delete_retention_ms` after their stamp, by the
stamps of the log. What is salvaged later than that is refused (`TOO_OLD`), so nothing that is forgotten here is asked for again.
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
    """Where the leader's mutations go."""

    def append(self, record: SlotRecord) -> int:
        """Write it behind everything else; return the offset after it. Raises if it is refused: then nothing is written."""
        ...

    def append_parts(self, parts: Sequence[tuple[bytes | None, bytes]]) -> int:
        """The same of the records of a checkpoint, with their keys, in one batch."""
        ...

    def batch(self, wall_ms: int) -> RecordBatch:
        """Return the batch that the log gathers, with room in it. Raises if it would be refused now."""
        ...

    def holds(self, origin: Origin) -> bool | None:
        """Whether what was written in that epoch at that offset is in this log; None if that is deleted, and nobody knows."""
        ...

    def epochs(self) -> Sequence[tuple[int, int]]:
        """Those that wrote to this log, as far as it knows, ascending: epoch, first offset."""
        ...


class UnderWay(Protocol):
    """A checkpoint of the slot (kv/replicated/checkpoints.py) that its leader is writing."""

    def before(self, op: Op, key: bytes) -> None:
        """A change of the key is about to be written."""
        ...

    def before_rows(self, columns: Columns, rows: Sequence[int]) -> None:
        """Plain changes of these rows may be about to be written."""
        ...


class KeyListener(Protocol):
    """Hears of the keys that have changed (kv/replicated/anti_entropy.py)."""

    @property
    def next_mark(self) -> int:
        """The offset at which a run of records has to end, so that the state of that moment is seen."""
        ...

    def changed(self, keys: Iterable[bytes]) -> None:
        """These keys were changed by the records below `applied`."""
        ...


class _StampedLog:
    """A slot's log, behind the port of a store (kv/engine/mutation_log.py)."""

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
    """`execute` on the leader, `apply` and `look` on followers. All of it belongs to one thread."""

    def __init__(
        self,
        clock: HybridClock,
        log: SlotLog,
        settings: KeyValueSettings,
        *,
        begins_at: int = 0,
        delete_retention_ms: int = DELETE_RETENTION_MS,
    ) -> None:
        """`clock`: of the node, for all its logs."""
        self.begins_at = begins_at
        """The offset of the first record that is applied: of the log's first, or of a checkpoint's beginning."""
        self.is_complete = begins_at == 0
        """Whether all keys are there. Else they are once the checkpoint is applied whole with which the log begins."""
        self.checkpoint: UnderWay | None = None
        self.epochs: tuple[tuple[int, int], ...] = ()
        """Those that wrote to the log before its last checkpoint: they tell whether it held what is deleted now."""
        self.keyspace = Keyspace(recency=settings.eviction is Eviction.LRU)
        self.clock = clock
        self.log = log
        self.delete_retention_ms = delete_retention_ms
        self.stamps: dict[bytes, bytes] = {}
        """When each key has changed (log_records.py), also those that went not long ago."""
        self.origins: dict[Origin, int] = {}
        """What was salvaged not long ago → the wall time of its stamp."""
        self.listeners: list[KeyListener] = []
        self.watcher: Watcher | None = None
        self.gone: dict[bytes, int] = {}
        """Keys that went not long ago → the wall time of what took them."""
        self.latest_ms = 0
        """The greatest wall time of the log."""
        self._gone_by_time: list[tuple[int, bytes]] = []
        self._origins_by_time: list[tuple[int, Origin]] = []
        keyspace = self.keyspace
        self.containers: tuple[Any, ...] = (
            keyspace.data, keyspace.deadlines, keyspace.recency, self.stamps, self.gone, self._gone_by_time
        )  # fmt: skip
        """What the kernel reads and changes."""
        self._stamped = _StampedLog(self)
        self.store = Store(
            self._stamped, self.keyspace, self.clock, settings, sequence=begins_at, listener=self._mutated
        )

    @property
    def applied(self) -> int:
        """The offset after the last record applied."""
        return self.store.sequence

    def stamp_of(self, key: bytes) -> Stamp | None:
        """Of its last change, also if that took it away."""
        known = self.stamps.get(key)
        return None if known is None else last_change(known)

    def restamp(self, key: bytes, stamp: Stamp | None) -> None:
        """The key was put right by its leader (kv/replicated/anti_entropy.py): this is when it last changed. None: it
        should not be there."""
        self.gone.pop(key, None)
        if stamp is None:
            self.stamps.pop(key, None)
        else:
            self.stamps[key] = stamp.pack()

    # -- on the leader -----------------------------------------------------------------------------------------

    def execute(self, operation: Operation[R], level: Level, now_ms: int) -> R:
        """Carry out an operation at once. A key whose time has come goes first, by a record, also if it is only read."""
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
        """Write a mutation that was salvaged, and apply it. Whether it counts was asked before (kv/replicated/salvage.py)."""
        assert record.origin is not None
        if self.checkpoint is not None:
            self.checkpoint.before(record.op, record.key)
        self.apply(self.log.append(record) - 1, record)

    def append_parts(self, parts: Sequence[tuple[bytes | None, bytes]]) -> int:
        """Records of a checkpoint: they change nothing here."""
        self.store.sequence = self.log.append_parts(parts)
        return self.store.sequence

    # -- on followers, and of what is in the log already --------------------------------------------------------

    def apply(self, offset: int, record: SlotRecord) -> None:
        """The next record of the log."""
        # A key that was deleted twice, on two sides of a network, is deleted once; the later stamp stays.
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
        """A record that changes nothing here."""
        self.store.sequence = offset + 1

    def observe(self, stamp: Stamp) -> None:
        """Never refused: it is in the log, or was given by this node."""
        self.clock.advance_past(stamp)

    def read(self, operation: Operation[R], now_ms: int) -> R:
        """What a follower has of a key; one whose time has come is there until its leader says that it went."""
        deadline_ms = self.keyspace.deadlines.get(operation.key)
        return self.store.read(operation, now_ms if deadline_ms is None else min(now_ms, deadline_ms - 1))

    # -- many at once (log_columns.py) -------------------------------------------------------------------------

    @property
    def takes_columns(self) -> bool:
        """Whether records may be applied together: the first tells whether keys are missing, and a watcher hears of each."""
        return self.watcher is None and (self.is_complete or self.applied > self.begins_at)

    @property
    def until_mark(self) -> int:
        """Return how many records may be taken together; behind a mark that a checkpoint has passed, one."""
        if not self.listeners:
            return sys.maxsize
        return max(min(each.next_mark - self.applied for each in self.listeners), 1)

    @property
    def forgets_at_ms(self) -> int:
        """Return the wall time of a record after which something is forgotten."""
        gone = self._gone_by_time
        return gone[0][0] + self.delete_retention_ms if gone else sys.maxsize

    def after_run(self, wall_ms: int) -> None:
        """Records were taken together, the last of which has that wall time."""
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
        """Keys that are there again take no more room than those that are gone."""
        if len(self._gone_by_time) > 2 * len(self.gone) + _HEAP_SLACK:
            self._gone_by_time[:] = sorted((wall_ms, key) for key, wall_ms in self.gone.items())

    def remember_origin(self, origin: Origin, wall_ms: int) -> None:
        self.origins[origin] = wall_ms
        heapq.heappush(self._origins_by_time, (wall_ms, origin))

    def _forget(self) -> None:
        """By the stamps of the log alone, in whatever order they came, so that all replicas forget the same."""
        until_ms = self.latest_ms - self.delete_retention_ms
        gone, origins = self._gone_by_time, self._origins_by_time
        while gone and gone[0][0] <= until_ms:
            wall_ms, key = heapq.heappop(gone)
            if self.gone.get(key) == wall_ms:
                del self.gone[key], self.stamps[key]
        while origins and origins[0][0] <= until_ms:
            self.origins.pop(heapq.heappop(origins)[1], None)
