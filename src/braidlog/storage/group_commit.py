"""Group commit: many wait, one syncs.

Knows: how to turn many waits for durability into few syncs, on the waiters' own threads or on a thread of its own.
Refuses to know: what is written. Invariant: a wait ends well only after a sync that began after its append.

`GroupCommit` is for callers with a thread to spare: one of them syncs for all. `Flusher` is for callers without (an event
loop), and for syncs that nobody waits for: intervals and windows.
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
"""So many partitions at once are synced on several threads: a file system writes its journal once for all who wait for it."""
SYNCERS = 8


class _Waiter:
    """Someone at a closed gate. Whoever opens it says whether to go home or to lead the next sync."""

    __slots__ = ("gate", "leads", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.leads = False
        self.gate = threading.Lock()
        self.gate.acquire()


class GroupCommit:
    """Waits for one partition. Whoever finds nobody syncing leads: it syncs for all who have appended by then.

    Who comes while a sync runs queues at a gate of its own and is let through when covered; the first one that is not
    leads the next sync. A thread that is alone syncs at once, with nothing between it and the disk.
    """

    def __init__(self, partition: PartitionLog) -> None:
        self._partition = partition
        self._lock = threading.Lock()
        self._led = False
        self._waiting: deque[_Waiter] = deque()

    def wait(self, next_offset: int) -> None:
        """Return when everything below `next_offset` is durable; raise the fault if it cannot become so."""
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
        """Open the gates of all that are durable, and one more: that one leads next, or fails as this one did."""
        durable = self._partition.durable_offset
        while self._waiting:
            waiter = self._waiting.popleft()
            waiter.leads = waiter.next_offset > durable
            waiter.gate.release()
            if waiter.leads:
                return
        self._led = False


class Flusher:
    """One thread that syncs partitions and their like: on request, at intervals, and when too much is un-synced. Many that are
    due together (a node that has taken over a thousand partitions) are shared out to more threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wake = threading.Condition()
        self._requests: dict[Syncable, list[Done]] = {}
        self._due: dict[Syncable, float] = {}
        self._windows: set[Syncable] = set()
        self._stopping = False
        self._syncers: ThreadPoolExecutor | None = None
        self.seconds = DurationHistogram()
        """What its syncs took."""
        self._thread = threading.Thread(target=self._run, name="braidlog-flusher", daemon=True)
        self._thread.start()

    def submit(self, partition: Syncable, done: Done | None = None) -> None:
        """Sync soon; `done` is called on the flusher's thread, with the fault if there was one.

        Requests that arrive while a sync runs share the next one.
        """
        with self._wake:
            if self._stopping:
                raise BrokerError(Reason.LOG_CLOSED, "the log is being closed")
            waiting = self._requests.setdefault(partition, [])
            if done is not None:
                waiting.append(done)
            self._wake.notify()

    def appended(self, partition: Syncable) -> None:
        """Called after each append that nobody waits for: decides whether and when it has to be synced."""
        settings = partition.settings
        if partition.unsynced_bytes >= settings.flush_window_bytes:
            # One at a time: asked again for every append while a sync runs, it would never stop syncing.
            if partition not in self._windows:
                self._windows.add(partition)
                self.submit(partition)
        elif settings.flush is Flush.INTERVAL and partition not in self._due:
            with self._wake:
                self._due[partition] = self._clock.monotonic() + settings.flush_interval_ms / 1000
                self._wake.notify()

    def stop(self) -> None:
        """Finish what was asked for, then end the thread."""
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
                    self._wake.wait(self._time_left())  # asked again each time: an append may have brought it nearer
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
        """What each sync took."""
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
            fault = error  # the partition has stopped; every later append says why
        took = self._clock.monotonic() - began
        self._windows.discard(partition)
        for done in waiting:
            done(fault)
        return took
