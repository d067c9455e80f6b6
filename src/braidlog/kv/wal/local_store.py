"""The local store of a node: its log is a write-ahead log in a folder, with snapshots that replace old log files.

Does not handle: operations (store.py), waiting.
Invariant: a snapshot is published only when all its changes are durable in the log.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from braidlog.kv.engine.hybrid_clock import HybridClock
from braidlog.kv.engine.keyspace import Image, Keyspace
from braidlog.kv.engine.operations import Columns, Operation, Results
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.engine.store import REPAIR, Mutation, Store
from braidlog.kv.feed.feed_records import MutationColumns, Watcher
from braidlog.kv.replicated.log_columns import UNLIMITED, head_of, in_order, look_up
from braidlog.kv.replicated.log_kernel import change_rows
from braidlog.kv.wal import snapshot as snapshots
from braidlog.kv.wal.recovery import Recovery
from braidlog.kv.wal.wal import SyncAtOnce, Syncer
from braidlog.kv.wal.wal_entries import Entry
from braidlog.model.errors import BrokerError, Reason
from braidlog.storage.files import Disk, join


class Snapshotting(NamedTuple):
    """A snapshot in progress."""

    head: snapshots.SnapshotHead
    image: Image


class LocalStore(Store):
    """A store and its folder. Not thread-safe, except for `wal.sync` and the methods of `SnapshotWriter`."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        node: bytes,
        settings: KeyValueSettings,
        *,
        now_ms: int,
        syncer: Syncer | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._disk = disk
        self.folder = folder
        self._watcher = watcher

        def note(sequence: int, clock: HybridClock, entry: Entry, keyspace: Keyspace) -> None:
            if watcher is not None:
                key = entry.key
                value, deadline_ms = keyspace.data.get(key), keyspace.deadlines.get(key, 0)
                stamp = clock.wall_ms, clock.counter
                watcher.changed(Mutation(sequence, *stamp, entry.op, key, entry.value, value, deadline_ms), node)

        recovered = Recovery(
            disk, folder, node, settings, now_ms=now_ms, replayed=note, syncer=syncer or SyncAtOnce()
        ).run()
        self.wal = recovered.wal
        self.notes = recovered.notes
        self.damages = recovered.damages
        self.snapshot = recovered.snapshot
        self.snapshot_bytes = recovered.snapshot_bytes
        self.snapshots = 0
        listener = None if watcher is None else lambda mutation: watcher.changed(mutation, node)
        super().__init__(
            self.wal, recovered.keyspace, recovered.clock, settings, sequence=self.wal.sequence, listener=listener
        )
        self.doubt = recovered.doubt or None

    # -- columns ---------------------------------------------------------------------------------------------

    def execute_columns(self, columns: Columns, now_ms: int) -> Results:
        """Execute operations in order: plain ones together (log_kernel.py), others singly."""
        found: list[Any] = [None] * len(columns.keys)
        rows = range(len(found))

        def execute(operation: Operation[Any]) -> Any:  # noqa: ANN401
            return self.execute(operation, now_ms)

        if columns.mutates:
            refused = in_order(columns, rows, found, execute, lambda at: self._change_plain(columns, at, now_ms, found))
        else:
            refused = in_order(columns, self._read_plain(columns, now_ms, found), found, execute)
        return Results(found, refused)

    @property
    def _may_take_plain(self) -> bool:
        """Return whether no snapshot uses the keys, and no key is in doubt."""
        return isinstance(self.keyspace.data, dict) and self.doubt is None

    def _read_plain(self, columns: Columns, now_ms: int, found: list[Any]) -> Sequence[int]:
        """Execute the plain reads of all rows; return the remaining rows."""
        if self.log.fault is not None or not self._may_take_plain:
            return range(len(found))
        keyspace = self.keyspace
        containers = keyspace.data, keyspace.deadlines, keyspace.recency
        left = look_up(self, containers, columns, None, max(now_ms, self.clock.wall_ms), found)
        self.operations += len(found) - len(left)
        return left

    def _change_plain(self, columns: Columns, at: int, now_ms: int, found: list[Any]) -> int:
        keyspace, clock, before = self.keyspace, self.clock, at
        now_ms = max(now_ms, clock.wall_ms)
        is_ready = self._stopped is None and self.wal.takes_entries and clock.can_tick(now_ms, len(found))
        if not is_ready or not self._may_take_plain:
            return at
        entries = bytearray()
        at, count, keyspace.used_bytes, peak_bytes = change_rows(
            (keyspace.data, keyspace.deadlines, keyspace.recency, None, None, None),
            columns.kinds,
            columns.keys,
            columns.values,
            columns.ttls,
            None,
            at,
            UNLIMITED,
            keyspace.used_bytes,
            self._limit or UNLIMITED,
            keyspace.key_cost,
            entries,
            0,
            UNLIMITED,
            head_of(0, now_ms, clock.node),
            0,
            found,
        )
        self.operations += at - before
        if not count:
            return at
        clock.tick_many(now_ms, count)
        self.sequence = self.wal.append_packed(entries, count, (clock.wall_ms, clock.counter))
        self.mutations += count
        self.peak_bytes = max(self.peak_bytes, peak_bytes)
        if self._watcher is not None:
            first = self.sequence - count + 1
            told = MutationColumns(first, clock.wall_ms, clock.counter - count + 1, columns, found, before, at, count)
            self._watcher.changed_together(told, clock.node)
        return at

    # -- snapshots -------------------------------------------------------------------------------------------

    @property
    def wants_snapshot(self) -> bool:
        """Return whether the log is so long that its replay would take longer than loading a snapshot."""
        grown = self.wal.size_bytes
        return self.doubt is None and grown >= self.settings.snapshot_wal_bytes and grown >= self.snapshot_bytes

    def check_whole(self) -> None:
        """Raise while keys are in doubt: a snapshot would lack them, and replace the log that shows it."""
        if self.doubt is not None:
            raise BrokerError(Reason.UNAVAILABLE, f"no snapshot is taken while {self.doubt}; {REPAIR}")

    def begin_snapshot(self, now_ms: int) -> Snapshotting:
        """Start a snapshot of the current state. The caller must end it, also after a failure, and settle the
        keyspace then."""
        self.check_whole()
        clock = self.clock
        head = snapshots.SnapshotHead(clock.node, self.sequence, clock.wall_ms, clock.counter, now_ms)
        return Snapshotting(head, self.keyspace.take_image())

    def end_snapshot(self, taking: Snapshotting, size: int | None) -> None:
        """End a snapshot. `size`: of its published file; None: the snapshot failed."""
        self.keyspace.give_back(taking.image)
        if size is not None:
            self.snapshot, self.snapshot_bytes = taking.head, size
            self.snapshots += 1

    def writer(self, head: snapshots.SnapshotHead) -> snapshots.SnapshotWriter:
        return snapshots.SnapshotWriter(self._disk, self.folder, head)

    def remove_older(self) -> int:
        """Remove the files that the newest snapshot replaces; return the log bytes freed."""
        assert self.snapshot is not None
        newest = snapshots.snapshot_name(self.snapshot.sequence)
        for name in self._disk.names(self.folder):
            if name.endswith(snapshots.SUFFIX) and name < newest:
                self._disk.remove(join(self.folder, name))
        return self.wal.remove_upto(self.snapshot.sequence)

    def close(self) -> None:
        """Make everything durable, or raise."""
        self.wal.close()
