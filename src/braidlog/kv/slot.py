"""One slot: a keyspace that is made by a replicated log, on the leader and on followers alike.

Knows: what each record makes of the keys, when each key last changed, what was salvaged. Refuses to know: where the log is, who
leads, what is committed (its owner applies no more than that on a follower, and all of the log on the leader).
Invariants: the state depends on nothing but the records applied, in their order; each mutation that is not salvaged has a greater
stamp than everything before it in the log; a key goes by a record only, never by a clock.

Keys that are gone keep their stamps, and salvaged mutations their origins, for `delete_retention_ms` after their stamp, by the
stamps of the log. What is salvaged later than that is refused (`TOO_OLD`), so nothing that is forgotten here is asked for again.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from braidlog.kv.entries import Op
from braidlog.kv.hlc import HybridClock, Stamp
from braidlog.kv.keyspace import Keyspace
from braidlog.kv.levels import Level
from braidlog.kv.operations import Operation
from braidlog.kv.settings import Eviction, KeyValueSettings
from braidlog.kv.slot_records import Origin, SlotRecord, element_digest
from braidlog.kv.store import Mutation, Store
from braidlog.kv.values import ListValue
from braidlog.model.errors import StorageFault
from braidlog.model.settings import Flush

R = TypeVar("R")
DELETE_RETENTION_MS = 24 * 3600 * 1000
REPLACES = frozenset((Op.SET, Op.DEL, Op.EXPIRED, Op.EVICTED))
"""After these it makes no difference what the key held before."""


class SlotLog(Protocol):
    """Where the leader's mutations go."""

    def append(self, record: SlotRecord) -> int:
        """Write it behind everything else; return the offset after it. Raises if it is refused: then nothing is written."""
        ...

    def holds(self, origin: Origin) -> bool | None:
        """Whether what was written in that epoch at that offset is in this log; None if that is deleted, and nobody knows."""
        ...


class KeyStamps(NamedTuple):
    replaced: Stamp | None
    """Of the last SET or DEL; None if there was none."""
    changed: Stamp
    """Of the last change of any kind."""


class _StampedLog:
    """A slot's log, behind the port of a store (kv/log.py)."""

    fault: StorageFault | None = None

    def __init__(self, log: SlotLog, node: bytes, keyspace: Keyspace) -> None:
        self._log = log
        self._node = node
        self._keyspace = keyspace
        self.level = Level.QUORUM

    def append(self, op: int, key: bytes, argument: bytes, ttl_seconds: int, stamp: tuple[int, int]) -> int:
        kind = Op(op)
        if kind in (Op.LPOP, Op.RPOP):
            held = self._keyspace.data[key]
            assert isinstance(held, ListValue)
            argument = element_digest(held.items[0 if kind is Op.LPOP else -1])
        return self._log.append(SlotRecord(kind, key, argument, ttl_seconds, self.level, Stamp(*stamp, self._node)))

    async def durable(self, sequence: int, flush: Flush = Flush.ACK) -> None:  # noqa: ARG002 - the port's
        raise AssertionError("whoever owns the slot waits as the level says")


class Slot:
    """`execute` on the leader, `apply` and `look` on followers. All of it belongs to one thread."""

    def __init__(
        self,
        node: bytes,
        log: SlotLog,
        settings: KeyValueSettings,
        *,
        delete_retention_ms: int = DELETE_RETENTION_MS,
    ) -> None:
        self.keyspace = Keyspace(recency=settings.eviction is Eviction.LRU)
        self.clock = HybridClock(node)
        self.log = log
        self.delete_retention_ms = delete_retention_ms
        self.stamps: dict[bytes, KeyStamps] = {}
        """Of every key that is there, and of those that went not long ago."""
        self.origins: dict[Origin, int] = {}
        """What was salvaged not long ago → the wall time of its stamp."""
        self.listeners: list[Callable[[bytes], None]] = []
        """Called with the key after each change."""
        self._gone: dict[bytes, int] = {}
        self._latest_ms = 0
        """The greatest wall time of the log."""
        self._stamped = _StampedLog(log, node, self.keyspace)
        self.store = Store(self._stamped, self.keyspace, self.clock, settings, sequence=0, listener=self._mutated)

    @property
    def applied(self) -> int:
        """The offset after the last record applied."""
        return self.store.sequence

    def stamp_of(self, key: bytes) -> Stamp | None:
        """Of its last change, also if that took it away."""
        known = self.stamps.get(key)
        return None if known is None else known.changed

    def restamp(self, key: bytes, stamp: Stamp | None) -> None:
        """The key was put right by its leader (kv/comparing.py): this is when it last changed. None: it should not be there."""
        self._gone.pop(key, None)
        if stamp is None:
            self.stamps.pop(key, None)
        else:
            self.stamps[key] = KeyStamps(stamp, stamp)

    # -- on the leader -----------------------------------------------------------------------------------------

    def execute(self, operation: Operation[R], level: Level, now_ms: int) -> R:
        """Carry out an operation at once. A key whose time has come goes first, by a record, also if it is only read."""
        self._stamped.level = level
        self.store.let_go_if_due(operation.key, now_ms)
        return self.store.execute(operation, now_ms)

    def expire(self, now_ms: int, count_max: int) -> int:
        self._stamped.level = Level.QUORUM
        return self.store.expire(now_ms, count_max)

    def _mutated(self, mutation: Mutation) -> None:
        self._note(Op(mutation.op), mutation.key, Stamp(mutation.wall_ms, mutation.counter, self.clock.node))

    def take(self, record: SlotRecord) -> None:
        """Write a mutation that was salvaged, and apply it. Whether it counts was asked before (kv/salvage.py)."""
        assert record.origin is not None
        self.apply(self.log.append(record) - 1, record)

    # -- on followers, and of what is in the log already --------------------------------------------------------

    def apply(self, offset: int, record: SlotRecord) -> None:
        """The next record of the log."""
        # A key that was deleted twice, on two sides of a network, is deleted once; the later stamp stays.
        if record.origin is None or record.op is not Op.DEL or record.key in self.keyspace.data:
            self.keyspace.apply(record.op, record.key, record.argument, record.ttl_seconds, record.stamp.wall_ms)
        self.observe(record.stamp)
        if record.origin is not None:
            self.origins[record.origin] = record.stamp.wall_ms
        self.store.sequence = offset + 1
        self._note(record.op, record.key, record.stamp)

    def observe(self, stamp: Stamp) -> None:
        """Never refused: it is in the log, or was given by this node."""
        self.clock.follow(stamp)

    def look(self, operation: Operation[R], now_ms: int) -> R:
        """What a follower has of a key; one whose time has come is there until its leader says that it went."""
        deadline_ms = self.keyspace.deadlines.get(operation.key)
        return self.store.look(operation, now_ms if deadline_ms is None else min(now_ms, deadline_ms - 1))

    # -- stamps ------------------------------------------------------------------------------------------------

    def _note(self, op: Op, key: bytes, stamp: Stamp) -> None:
        known = self.stamps.get(key)
        if op in REPLACES or known is None:
            self.stamps[key] = KeyStamps(stamp if op in REPLACES else None, stamp)
        else:
            self.stamps[key] = KeyStamps(known.replaced, max(known.changed, stamp))
        self._latest_ms = max(self._latest_ms, stamp.wall_ms)
        self._gone.pop(key, None)
        if key not in self.keyspace.data:
            self._gone[key] = stamp.wall_ms
        self._forget()
        for listener in self.listeners:
            listener(key)

    def _forget(self) -> None:
        """By the stamps of the log alone, so that all replicas forget the same."""
        until_ms = self._latest_ms - self.delete_retention_ms
        while self._gone and next(iter(self._gone.values())) <= until_ms:
            key = next(iter(self._gone))
            del self._gone[key], self.stamps[key]
        while self.origins and next(iter(self.origins.values())) <= until_ms:
            del self.origins[next(iter(self.origins))]
