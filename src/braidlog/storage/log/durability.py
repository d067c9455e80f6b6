"""Sync and checkpoint a partition, track its durable offset, and own its locks.

Invariants:

- A crash cannot lose anything below `durable_offset`.
- Older segments are synced first.
- A failed sync is final: nothing is acknowledged after it. A checkpoint or an index that finds no disk space is not
  final: records are durable without it, and the next sync writes all of it again.
- Growth, a fault or the close wakes a waiting thread.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

from braidlog.model.errors import StorageFault
from braidlog.model.settings import Flush, TopicSettings
from braidlog.storage.segment.preallocation import SmallSyncs
from braidlog.storage.segment.segment import Segment, SegmentList
from braidlog.storage.segment.segment_files import Mark
from braidlog.storage.state.partition_state import Checkpoints, PartitionState, StateImage


class PartitionLocks:
    """The locks, fault and closed flag of a partition. Acquire several locks only in the order of the fields."""

    def __init__(self, folder: str, *, closed: bool) -> None:
        self._folder = folder
        self.upkeep = threading.RLock()
        """Held for the whole time in which segments are replaced or removed: a compaction must not restore truncated
        records, nor run beyond a close.
        """
        self.sync_lock = threading.RLock()
        """Held during a sync: one sync runs at a time."""
        self.lock = threading.RLock()
        self.moved = threading.Condition(self.lock)
        self.followers = 0
        self.fault: StorageFault | None = None
        self.closed = closed

    def fail(self, fault: StorageFault) -> None:
        """Stop the partition: memory and disk may differ."""
        with self.lock:
            self.fault = StorageFault(
                f"the partition stopped after a fault and must be reopened: {fault}", self._folder
            )
            self.moved.notify_all()

    def check(self) -> None:
        if self.fault is not None:
            raise self.fault.again()

    def wait(self, is_reached: Callable[[], bool], timeout: float | None) -> bool:
        """Block until `is_reached()`, the close or a fault, which is raised; return False on timeout."""
        with self.lock:
            self.followers += 1
            try:
                moved = self.moved.wait_for(lambda: self.closed or self.fault is not None or is_reached(), timeout)
            finally:
                self.followers -= 1
            self.check()
            return moved


class Durability:
    """Sync and checkpoint a partition. Every method but `maybe_close` requires `gate.sync_lock` to be held."""

    def __init__(
        self, gate: PartitionLocks, chain: SegmentList, state: PartitionState, checkpoints: Checkpoints
    ) -> None:
        self._gate = gate
        self._chain = chain
        self._state = state
        self._checkpoints = checkpoints
        self._forgotten: tuple[int, int] = (chain.active.base_offset, 0)
        self.durable_offset = state.end_offset
        self.unsynced_bytes = 0
        self.since_checkpoint_bytes = 0
        self._small_syncs = SmallSyncs()

    def sync(self, upto: int | None, settings: TopicSettings, *, copies: int = 0) -> int:
        """Implement `PartitionLog.sync`.

        A checkpoint follows every flush window of bytes, and this sync if `copies` is set.
        """
        window_bytes = settings.flush_window_bytes
        with self._gate.lock:
            self._gate.check()
            if upto is not None and self.durable_offset >= upto:
                return self.durable_offset  # another thread's sync covered this call while it waited for the lock
            if self.durable_offset == self._state.end_offset and not self._chain.pending and not copies:
                return self.durable_offset
            pending, active = list(self._chain.pending), self._chain.active
            reached = active.reach()
            size = self.unsynced_bytes
            is_first = bool(pending) or _is_young(active)
            due = is_first or copies or self.since_checkpoint_bytes >= window_bytes
            image = self._state.image() if due else None
        for segment in pending:  # older segments first: a synced segment proves that all segments before it are synced
            with self._stopping():
                segment.sync_to_end()
            with self._stopping_unless_full():
                segment.seal_index()
        with self._stopping():
            self._chain.sync_names()
            active.sync(reached)
        if image is not None:
            try:
                with self._stopping_unless_full():
                    self._save_synced(active, image, max(copies, 1))
            except StorageFault:
                if is_first or self._gate.fault is not None:
                    raise  # no record of a segment is acknowledged before a checkpoint names it: see `_is_young`
        with self._gate.lock:
            del self._chain.pending[: len(pending)]
            self.durable_offset = reached.next_offset
            if self._state.is_alone:
                self._state.watermark = reached.next_offset
            self.unsynced_bytes -= size
            if settings.flush is Flush.ACK:
                active.reserve_bytes = self._small_syncs.note(size, active.data_bytes)
            self._gate.moved.notify_all()
        self._drop_page_cache(active, reached, window_bytes)
        return reached.next_offset

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Stop the partition on a disk fault."""
        try:
            yield
        except StorageFault as fault:
            fault.left_remains = True
            self._gate.fail(fault)
            raise

    @contextlib.contextmanager
    def _stopping_unless_full(self) -> Iterator[None]:
        """Stop the partition on a disk fault, but not on a full disk: the next attempt writes the same data in full.

        The appended records are in the log by then.
        """
        try:
            yield
        except StorageFault as fault:
            fault.left_remains = True
            if not fault.is_full:
                self._gate.fail(fault)
            raise

    def _save_synced(self, active: Segment, image: StateImage, copies: int) -> None:
        """Save the state as of the start of the sync, with the current epochs and log start, which never go back."""
        with self._gate.lock:
            count = len(active.index)
        active.save_index(sealed=False, count=count)
        saved = False
        while not saved:
            # Appends continue during this write. If one of them saved an image (a new epoch), take the current values
            # again.
            with self._gate.lock:
                version = self._checkpoints.version
                image.epochs, image.begun = self._state.epochs.entries(), self._state.begun
                image.start_offset = self._state.start_offset
                image.watermark = self._state.watermark
            saved = self._checkpoints.save_unless_overtaken(image, version, copies)
        with self._gate.lock:
            self.since_checkpoint_bytes = 0

    def _drop_page_cache(self, active: Segment, reached: Mark, window_bytes: int) -> None:
        """Drop from the page cache what was synced one window ago, so that ingest does not evict other pages."""
        base, position = self._forgotten
        if base != active.base_offset:
            position = 0
        if reached.position - position >= 2 * window_bytes:
            active.forget(position, reached.position - window_bytes - position)
            position = reached.position - window_bytes
        self._forgotten = (active.base_offset, position)

    def maybe_close(self, settings: TopicSettings, *, settled_only: bool) -> bool:
        """Implement `Holder.maybe_close`. Takes both locks without blocking: no writer and no sync holds both."""
        if not self._gate.sync_lock.acquire(blocking=False):
            return False
        try:
            if not self._gate.lock.acquire(blocking=False):
                return False
            try:
                return self._release(settings, settled_only=settled_only)
            finally:
                self._gate.lock.release()
        finally:
            self._gate.sync_lock.release()

    def _release(self, settings: TopicSettings, *, settled_only: bool) -> bool:
        """Sync and close the active file; return whether it is closed. A stopped partition has nothing left to sync."""
        active = self._chain.active
        settled = active.is_settled and not self._chain.pending and self.durable_offset == self._state.end_offset
        if not settled and self._gate.fault is None:
            if settled_only:
                return False
            try:
                self.sync(None, settings)
                with self._stopping():
                    active.sync_file()  # the header's mark too, before the file is closed
            except StorageFault:
                if self._gate.fault is None:
                    return False  # no space for a checkpoint: a close would lose it
        with contextlib.suppress(StorageFault):  # zeros may stay: a reader never mistakes them for records
            active.drop_reserve()
        self._chain.close_active()
        return True

    def checkpoint(self, copies: int, *, clean_stop: bool) -> None:
        """Save the state at the log end, all of which is synced. Requires `gate.lock` to be held."""
        active = self._chain.active
        if self._state.is_alone:
            self._state.watermark = self.durable_offset
        with self._stopping():
            active.save_index(sealed=False)
            if clean_stop:
                active.drop_reserve()
            if not active.is_settled:
                active.sync_file()
            image = self._state.image(clean_stop=clean_stop)
            image.shape = self._chain.shape(self._state.cleaned_offset) if clean_stop else None
            self._checkpoints.save(lambda _: image, copies)
        self.since_checkpoint_bytes = 0


def _is_young(active: Segment) -> bool:
    """Return whether no byte of the active segment is durable yet: its first sync is followed by a checkpoint.

    From then on recovery can distinguish a lost segment header from a creation that never finished.
    """
    return active.mark.next_offset == active.base_offset
