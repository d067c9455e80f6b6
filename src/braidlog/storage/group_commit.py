"""Group commit: share one sync among many callers.

Invariant: a wait returns without an error only after a sync that began after its append.

`GroupCommit` is for callers that can block a thread: one of them syncs for all. `Flusher` has its own thread, for
event loops and for syncs without a waiting caller (intervals and windows).
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from braidlog.model.clock import Clock, DurationHistogram
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.runtime import Syncable
from braidlog.model.settings import Flush
from braidlog.storage.log.partition_log import PartitionLog

Done = Callable[[StorageFault | None], None]
IDLE_SECONDS = 60.0
SHARED_FROM = 16
"""At this many due partitions several threads sync them: the file system writes its journal once for all waiting
syncs.
"""
SYNCERS = 8


class _Waiter:
    """A thread that waits for a running sync. `leads` says, once the gate opens, whether it must sync itself."""

    __slots__ = ("gate", "leads", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.leads = False
        self.gate = threading.Lock()
        self.gate.acquire()


class GroupCommit:
    """Block the callers of one partition until their appends are durable, with few syncs.

    The first caller leads: it syncs for all who appended before. A caller that arrives during a sync waits at its
    own gate. When that sync ends, all callers that it covers return, and the first caller that it does not cover
    leads the next sync. A lone caller syncs immediately.
    """

    def __init__(self, partition: PartitionLog) -> None:
        self._partition = partition
        self._lock = threading.Lock()
        self._led = False
        self._waiting: deque[_Waiter] = deque()

    def wait(self, next_offset: int) -> None:
        """Block until everything below `next_offset` is durable; raise the fault if the sync fails."""
        waiter = None
        with self._lock:
            if self._partition.durable_offset >= next_offset:
                return
            if self._led:
                waiter = _Waiter(next_offset)
                self._waiting.append(waiter)
            self._led = True
        if waiter is not None:
            waiter.gate.acquire()
            if not waiter.leads:
                return
        try:
            self._partition.sync(upto=next_offset)
        finally:
            with self._lock:
                self._let_through()

    def _let_through(self) -> None:
        """Release every waiter whose append is durable, and one more, which leads the next sync."""
        durable = self._partition.durable_offset
        while self._waiting:
            waiter = self._waiting.popleft()
            waiter.leads = waiter.next_offset > durable
            waiter.gate.release()
            if waiter.leads:
                return
        self._led = False


class Flusher:
    """Sync partitions on its own thread: on request, at intervals, and when too many bytes are not synced.

    Many syncs that are due together (a node that takes over a thousand partitions) run on several threads.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wake = threading.Condition()
        self._requests: dict[Syncable, list[Done]] = {}
        self._due: dict[Syncable, float] = {}
        self._windows: set[Syncable] = set()
        self._stopping = False
        self._syncers: ThreadPoolExecutor | None = None
        self.seconds = DurationHistogram()
        """How long its syncs took."""
        self._thread = threading.Thread(target=self._run, name="braidlog-flusher", daemon=True)
        self._thread.start()

    def submit(self, partition: Syncable, done: Done | None = None) -> None:
        """Sync a partition soon; `done` is called on the flusher's thread, with the fault if the sync failed.

        Requests that arrive during a sync share the next one.
        """
        with self._wake:
            if self._stopping:
                raise BrokerError(Reason.LOG_CLOSED, "the log is being closed")
            waiting = self._requests.setdefault(partition, [])
            if done is not None:
                waiting.append(done)
            self._wake.notify()

    def appended(self, partition: Syncable) -> None:
        """Schedule a sync if the partition needs one; called after each append without a waiting caller."""
        settings = partition.settings
        if partition.unsynced_bytes >= settings.flush_window_bytes:
            # At most one at a time: requested again for every append during a sync, the syncs would never stop.
            if partition not in self._windows:
                self._windows.add(partition)
                self.submit(partition)
        elif settings.flush is Flush.INTERVAL and partition not in self._due:
            with self._wake:
                self._due[partition] = self._clock.monotonic() + settings.flush_interval_ms / 1000
                self._wake.notify()

    def stop(self) -> None:
        """Complete all requested syncs, then end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()
        if self._syncers is not None:
            self._syncers.shutdown()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._has_work():
                    self._wake.wait(self._time_left())  # computed again each time: an append may have moved it closer
                if self._stopping and not self._requests:
                    return
                batch, self._requests = self._requests, {}
                now = self._clock.monotonic()
                for partition in [p for p, due in self._due.items() if due <= now]:
                    del self._due[partition]
                    batch.setdefault(partition, [])
            for seconds in self._sync_all(batch):
                self.seconds.note(seconds)

    def _has_work(self) -> bool:
        return self._stopping or bool(self._requests) or self._time_left() <= 0

    def _time_left(self) -> float:
        return min(self._due.values(), default=self._clock.monotonic() + IDLE_SECONDS) - self._clock.monotonic()

    def _sync_all(self, batch: dict[Syncable, list[Done]]) -> Iterable[float]:
        """Sync every partition; return how long each sync took."""
        if len(batch) < SHARED_FROM:
            return map(self._sync, batch, batch.values())
        if self._syncers is None:
            self._syncers = ThreadPoolExecutor(SYNCERS, "braidlog-syncer")
        return self._syncers.map(self._sync, batch, batch.values())

    def _sync(self, partition: Syncable, waiting: list[Done]) -> float:
        began, fault = self._clock.monotonic(), None
        try:
            partition.sync()
        except StorageFault as error:
            fault = error  # the partition has stopped; every later append raises this fault
        took = self._clock.monotonic() - began
        self._windows.discard(partition)
        for done in waiting:
            done(fault)
        return took
