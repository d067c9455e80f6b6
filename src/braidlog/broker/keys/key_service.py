"""The key-value service: executes operations and acknowledges them according to the settings.

Does not handle: transport, the effect of operations.
Invariants: operations take effect in their order of arrival, without waiting. A read does not wait. A mutation is
acknowledged when it is stored as `flush` demands: with `ack` on the disk, else in the kernel. Other clients see
its effect before that. After a power loss, or a refusal for lack of disk space, an unacknowledged operation may
or may not have happened.

A snapshot is a copy-on-write image of the keyspace. The event loop serializes it in slices of a millisecond and
serves requests between them; a thread writes to the disk. Changes made during the snapshot are merged into the
keyspace afterwards, also in slices.
"""

import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from braidlog.broker.keys.change_feed import Feed
from braidlog.broker.keys.clustered_keys import ClusteredKeys, KeyServiceContext
from braidlog.broker.keys.feed_sources import StoreSource
from braidlog.broker.keys.slot_service import SlotService
from braidlog.broker.keys.slot_stats import memory_of, stats_of, stats_of_slots
from braidlog.broker.topics import Topics
from braidlog.kv.engine import operations as operations  # noqa: PLC0414 - part of this service's interface
from braidlog.kv.engine.key_scan import Scan as Scan  # noqa: PLC0414 - part of this service's interface
from braidlog.kv.engine.key_scan import Scanned, scan
from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.engine.operations import LEVELS as LEVELS  # noqa: PLC0414 - as above
from braidlog.kv.engine.operations import Columns, Level, MemoryUsage, Operation, Results, SnapshotDone, Stats
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.engine.store import REPAIR
from braidlog.kv.feed.feed_records import Watcher
from braidlog.kv.replicated.slots import FEED_TOPIC
from braidlog.kv.wal import snapshot as snapshots
from braidlog.kv.wal.local_store import LocalStore, Snapshotting
from braidlog.model.clock import SteadyClock
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.model.settings import Flush

R = TypeVar("R")
EXPIRE_KEYS = 500
"""Keys expired in one turn of the event loop."""
SETTLE_KEYS = 1_000
"""Changes merged into the keyspace in one turn of the event loop, after a snapshot."""
SLICE_SECONDS = 0.001
WRITE_BYTES = 1024 * 1024
_SNAPSHOT = "the snapshot"
_GROWING = frozenset((operations.Set, operations.Increment, operations.Push, operations.HashSet))


class KeyValue:
    """Executes operations on keys. Call `open` first."""

    def __init__(
        self,
        open_store: Callable[[Watcher | None], LocalStore],
        settings: KeyValueSettings,
        topics: Topics,
        runtime: Runtime,
        *,
        resident: Callable[[], int] = lambda: 0,
    ) -> None:
        self._open_store = open_store
        self._runtime = runtime
        self._topics = topics
        self._resident = resident
        self._turns = KeyedLock(runtime)
        self._store: LocalStore | None = None
        self._fault: StorageFault | None = None
        self._feed: Feed | None = None
        self._source: StoreSource | None = None
        self._opened_at = runtime.monotonic()
        self._steady = SteadyClock(runtime)
        self.settings = settings
        self.clustered: ClusteredKeys | None = None
        """The slots, on a node of a cluster."""
        self.no_room: StorageFault | None = None
        """The error for operations that grow the store, while the disk has too little space."""

    def open(self) -> None:
        """Recover the store. If that fails, the store stays offline and every later request gets the fault; it is
        raised once, here.

        Runs on any thread before the store is used. A node of a cluster has no store.
        """
        if self.clustered is not None:
            return
        try:
            self._feed = feed = self._open_feed() if self.settings.feed else None
            store = self._open_store(feed)
            if feed is not None:
                self._source = StoreSource(store, self._topics, feed)
        except StorageFault as fault:
            self._fault = StorageFault(f"the key-value store is offline: {fault}")
            raise
        self._store = store
        self._steady = SteadyClock(self._runtime, not_before_ms=store.clock.wall_ms)

    def _open_feed(self) -> Feed:
        """Open the feed before the store: recovery passes new changes to it."""
        hosting, linger_ms = self._topics.hosting, self.settings.feed_linger_ms
        if self.settings.flush is not Flush.ACK:  # each round also syncs the store's log
            linger_ms = max(linger_ms, self.settings.flush_interval_ms)
        partition = None if hosting.find(FEED_TOPIC) is None else hosting.partition(FEED_TOPIC, 0)
        return Feed(self._runtime, partition, linger_seconds=linger_ms / 1000)

    def background(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Return the store's background tasks, by name."""
        feed, source = self._feed, self._source
        return [] if feed is None or source is None else [("kv-feed", lambda: feed.run(source))]

    @property
    def store(self) -> LocalStore:
        if self._store is None:
            if self._fault is not None:
                raise self._fault.again()
            raise BrokerError(Reason.UNAVAILABLE, "the key-value store is not open")
        return self._store

    def join_cluster(self, around: KeyServiceContext) -> ClusteredKeys:
        """Serve keys from slots: this node belongs to a cluster."""
        self.clustered = ClusteredKeys(around, self.settings, self._topics)
        return self.clustered

    @property
    def slots(self) -> SlotService | None:
        """Return the slots, on a node of a cluster."""
        return None if self.clustered is None else self.clustered.slots

    def keyspaces(self) -> list[Keyspace]:
        """Return the keyspaces that this node holds, led here or not."""
        if self.slots is not None:
            return [each.slot.keyspace for each in self.slots.local_logs().values()]
        return [self.store.keyspace]

    @property
    def fault(self) -> StorageFault | None:
        """Return why this node serves no keys."""
        return None if self.slots is not None else self.store.fault

    @property
    def doubt(self) -> str:
        """Return which keys are refused because the store is damaged; "" if none."""
        store = self._store
        return "" if store is None or store.doubt is None else f"{store.doubt}: {store.damages[0]}; {REPAIR}"

    def now_ms(self) -> int:
        """Return the clock's time by which keys expire."""
        return self._steady.now_ms()

    @property
    def damages(self) -> list[str]:
        """Return what recovery could not read, and which keys are affected."""
        return [] if self._store is None else self._store.damages

    @property
    def notes(self) -> list[str]:
        """Return what recovery found and repaired."""
        return [] if self._store is None else self.store.notes

    # -- operations ------------------------------------------------------------------------------------------

    async def execute(self, operation: Operation[R], level: Level = Level.QUORUM) -> R:
        """Execute an operation; return when it is stored. In a cluster, `level` selects how many nodes must have it."""
        if self.no_room is not None and type(operation) in _GROWING:
            raise _no_room(self.no_room)
        clustered = self.clustered
        if clustered is not None:
            if not clustered.is_created:
                await clustered.ensure_slots()
            return await clustered.slots.execute(operation, level)
        store = self._store or self.store
        before = store.sequence
        result = store.execute(operation, self._steady.now_ms())
        sequence = store.sequence
        if sequence != before:
            await self._wait_durable(store, sequence)
        return result

    def execute_columns(self, columns: Columns, level: Level = Level.QUORUM) -> Coroutine[Any, Any, Results]:
        """Execute many operations in order, in one step; return when all are stored. A refused operation does not
        affect the rest."""
        if self.no_room is not None and columns.mutates:
            return self._delete_only(columns, level, _no_room(self.no_room))
        return self._execute_columns(columns, level)

    async def _delete_only(self, columns: Columns, level: Level, error: BrokerError) -> Results:
        """Execute only the deletions; refuse the changes that may grow the store."""
        refusals = [None if kind == operations.Kind.DELETE else error for kind in columns.kinds]
        return (await self._execute_columns(columns.without(refusals), level)).among(refusals)

    async def _execute_columns(self, columns: Columns, level: Level) -> Results:
        clustered = self.clustered
        if clustered is not None:
            if not clustered.is_created:
                await clustered.ensure_slots()
            return await clustered.slots.execute_columns(columns, level)
        store = self._store or self.store
        before = store.sequence
        results = store.execute_columns(columns, self._steady.now_ms())
        sequence = store.sequence
        if sequence != before:
            await self._wait_durable(store, sequence)
        return results

    async def scan(self, asked: Scan, level: Level = Level.QUORUM) -> Scanned:
        """Return some names of keys. In a cluster, the caller scans slot by slot."""
        clustered = self.clustered
        if clustered is not None:
            if not clustered.is_created:
                await clustered.ensure_slots()
            return await clustered.slots.scan(asked, level)
        return scan(self.store.keyspace, asked, self.now_ms()) if not asked.slot else Scanned([], 0, b"")

    def read(self, operation: Operation[R]) -> R:
        """Execute an operation that changes nothing, on a node without a cluster."""
        return (self._store or self.store).execute(operation, self._steady.now_ms())

    @property
    def changes_at_once(self) -> bool:
        """Return whether a change can be acknowledged immediately: it waits for no disk, feed or other node, and has
        space."""
        feed = self._feed
        if self.clustered is not None or self.settings.flush is Flush.ACK or self.no_room is not None:
            return False
        return feed is None or (feed.partition is not None and not feed.is_behind)

    def change(self, operation: Operation[R]) -> R:
        """Execute an operation without waiting; only while `changes_at_once`."""
        store = self._store or self.store
        before = store.sequence
        result = store.execute(operation, self._steady.now_ms())
        if store.sequence != before:
            store.wal.hand_over()
        return result

    def change_columns(self, columns: Columns) -> Results:
        """Execute operations without waiting; only while `changes_at_once`."""
        store = self._store or self.store
        before = store.sequence
        results = store.execute_columns(columns, self._steady.now_ms())
        if store.sequence != before:
            store.wal.hand_over()
        return results

    async def _wait_durable(self, store: LocalStore, sequence: int) -> None:
        feed = self._feed
        await store.wal.durable(sequence, self.settings.flush)
        if feed is not None and (feed.is_behind or feed.partition is None):
            await feed.wait_for_space()

    # -- in the background -----------------------------------------------------------------------------------

    async def expire(self) -> int:
        """Delete expired keys; return their count. Called periodically.

        Also merges changes made during a snapshot into the keyspace.
        """
        if self.slots is not None:
            return await self.slots.expire()
        store, count = self.store, 0
        if store.fault is not None:
            return 0  # logged when it happened
        while (gone := store.expire(self.now_ms(), EXPIRE_KEYS)) > 0:
            count += gone
            await self._wait_durable(store, store.sequence)
        while store.keyspace.settle(SETTLE_KEYS):
            await self._runtime.wakeup().wait(0)
        return count

    async def maybe_snapshot(self) -> SnapshotDone | None:
        """Take a snapshot if the log has grown enough."""
        if self.slots is not None:
            await self.slots.write_checkpoints()
            return None
        wanted = self.store.fault is None and self.store.wants_snapshot and not self._turns.is_held(_SNAPSHOT)
        return await self.snapshot() if wanted else None

    # -- snapshots -------------------------------------------------------------------------------------------

    async def snapshot(self) -> SnapshotDone:
        """Take a snapshot of the store, and delete the log that it replaces. In a cluster: of the slots led here."""
        if self.slots is not None:
            return await self.slots.snapshot()
        async with self._turns.acquire(_SNAPSHOT):
            store, runtime = self.store, self._runtime
            store.check_whole()
            upto = store.wal.request_roll(runtime.now_ms())
            await runtime.blocking(lambda: store.wal.sync(upto))
            taking = store.begin_snapshot(runtime.now_ms())
            keys, size = len(taking.image.data), None
            try:
                size = await self._write(store, taking)
            finally:
                store.end_snapshot(taking, size)
            freed = await runtime.blocking(store.remove_older)
        return SnapshotDone(taking.head.sequence, keys, size, taking.head.taken_ms, freed)

    async def _write(self, store: LocalStore, taking: Snapshotting) -> int:
        """Write an image, and publish it once all its changes are durable in the log and in the feed.

        Published earlier, it would replace log entries that the feed still lacks.
        """
        runtime = self._runtime
        writer = await runtime.blocking(lambda: store.writer(taking.head))
        try:
            await self._write_blocks(writer, taking)
            await runtime.blocking(writer.seal)
            await store.wal.durable(taking.head.sequence)
            if self._feed is not None:
                await self._feed.reach(taking.head.sequence)
            await runtime.blocking(writer.publish)
        except BaseException:
            with contextlib.suppress(StorageFault):
                writer.abandon()
            raise
        return writer.size

    async def _write_blocks(self, writer: snapshots.SnapshotWriter, taking: Snapshotting) -> None:
        runtime = self._runtime
        blocks: list[bytes] = []
        size = 0
        began = runtime.monotonic()
        for block in snapshots.slices(taking.image):
            blocks.append(block)
            size += len(block)
            if size >= WRITE_BYTES or runtime.monotonic() - began >= SLICE_SECONDS:
                data, blocks, size = b"".join(blocks), [], 0
                await runtime.blocking(lambda data=data: writer.write(data))  # type: ignore[misc]
                began = runtime.monotonic()
        await runtime.blocking(lambda: writer.write(b"".join(blocks)))

    # -- counts ----------------------------------------------------------------------------------------------

    def memory(self) -> MemoryUsage:
        """Return the memory that this node's keys use."""
        if self.slots is not None:
            return memory_of(self.slots, self.settings, self._resident())
        store = self.store
        return MemoryUsage(
            used_bytes=store.keyspace.used_bytes,
            limit_bytes=self.settings.memory_bytes_max,
            peak_bytes=store.peak_bytes,
            keys=len(store.keyspace),
            resident_bytes=self._resident(),
        )

    def stats(self) -> Stats:
        """Return this node's counts. Each node of a cluster has its own."""
        uptime_seconds = int(self._runtime.monotonic() - self._opened_at)
        if self.clustered is not None:
            told = self.clustered.feeds.sequence
            return stats_of_slots(self.clustered.slots, uptime_seconds=uptime_seconds, feed_sequence=told)
        store = self.store
        return stats_of(
            [store],
            uptime_seconds=uptime_seconds,
            sequence=store.sequence,
            durable_sequence=store.wal.durable_sequence,
            feed_sequence=0 if self._feed is None else self._feed.sequence,
            wal_bytes=store.wal.size_bytes,
            wal_files=store.wal.files,
            snapshots=store.snapshots,
            snapshot_sequence=0 if store.snapshot is None else store.snapshot.sequence,
            snapshot_taken_ms=0 if store.snapshot is None else store.snapshot.taken_ms,
        )

    async def drain(self) -> None:
        """Before a shutdown, publish the changes that the feed lacks. In a cluster, the next leader of the feed
        continues it."""
        if self._feed is not None and self._store is not None and self._feed.fault is None:
            await self._feed.reach(self._store.sequence)

    def close(self) -> None:
        """Make everything durable, or raise."""
        if self._store is not None:
            self._store.close()


def _no_room(no_room: StorageFault) -> BrokerError:
    return BrokerError(Reason.UNAVAILABLE, f"{no_room}; delete keys, or make room on the disk")
