"""The ports of the services on an event loop.

Knows: futures, the flusher's thread, the executor. Refuses to know: what is waited for.
Invariant: a wait for durability ends well only after a sync that began after the append; all who wait for one partition at a
time share one sync and one future. A small sync runs on the loop, where it spares two hand-overs between threads, if no other
partition waits for one and only as long as the disk is quick; all others run on the flusher's thread. After several syncs in a
row that a single request waited for, the next one does not wait for the end of its turn either: nobody is there to share it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from braidlog.model.clock import Clock
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.measure import Seconds
from braidlog.model.world import Syncable
from braidlog.server.coroutines import Abandonable, Owed, Patient
from braidlog.storage.commit import Flusher

T = TypeVar("T")

SYNC_HERE_BYTES_MAX = 64 * 1024
SYNC_HERE_SECONDS_MAX = 0.0005
"""If syncs on the loop take longer, the last one was the last there for a while: everybody else stands still meanwhile."""
MEAN_OF_SYNCS = 8
"""About so many of them make up what they take: one alone may have been slow because the machine was busy."""
SYNC_ELSEWHERE_FACTOR = 20
"""For so many times as long as it took: slow syncs have at most a twentieth of the loop's time."""
LONE_SYNCS_MIN = 8
"""So many syncs in a row had a single request each, and the next one is believed to have, too."""

WOKEN_AT_ONCE = 1000
"""Waits that end in one turn of the loop: one append may end those of fifty thousand long polls, and each costs it some time."""


class Waker:
    """Ends waits, so many in one turn of the loop, the others in the turns after it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[asyncio.Future[bool]] = deque()
        self._left = WOKEN_AT_ONCE

    def wake(self, future: "asyncio.Future[bool]") -> None:
        if self._left == WOKEN_AT_ONCE:
            self._loop.call_soon(self._go_on)
        if self._left and not self._line:
            self._left -= 1
            future.set_result(True)
        else:
            self._line.append(future)

    def _go_on(self) -> None:
        self._left = WOKEN_AT_ONCE
        line = self._line
        while line and self._left:
            future = line.popleft()
            if not future.done():  # its time may have run out, or its client may be gone
                self._left -= 1
                future.set_result(True)
        if self._left < WOKEN_AT_ONCE:
            self._loop.call_soon(self._go_on)


class LoopWakeup:
    """A future that can be woken or run out."""

    __slots__ = ("_future", "_loop", "_waker")

    def __init__(self, loop: asyncio.AbstractEventLoop, waker: Waker, kind: type[Abandonable[bool]]) -> None:
        self._loop = loop
        self._waker = waker
        self._future = kind(loop=loop)

    def wake(self) -> None:
        if not self._future.done():
            self._waker.wake(self._future)

    def _run_out(self) -> None:
        if not self._future.done():
            self._future.set_result(False)

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109 - the port has no loop to cancel with
        timer = self._loop.call_later(timeout, self._run_out)
        try:
            return await self._future
        finally:
            timer.cancel()


class LoopWorld:
    """What model/world.py asks for, on this loop."""

    def __init__(self, clock: Clock, flusher: Flusher) -> None:
        self._clock = clock
        self.now_ms, self.monotonic = clock.now_ms, clock.monotonic
        self._flusher = flusher
        self.appended = flusher.appended
        self._loop = asyncio.get_running_loop()
        self._waker = Waker(self._loop)
        self._groups: dict[Syncable, _Group] = {}
        self._held_back: set[Syncable] = set()
        """Whose groups wait for the end of a sync elsewhere, to be synced here."""
        self._elsewhere: dict[Syncable, int] = {}
        """Syncs that were handed to the flusher."""
        self._may_sync_here_from = clock.monotonic()
        self._mean_seconds: float | None = None
        """What a sync on the loop takes of late; None: nobody knows, or it was too much."""
        self._lone_syncs = 0
        self._synced_in_turn = False
        self.seconds = Seconds()
        """What the syncs on the loop took."""

    def wakeup(self, *, patient: bool = False, owed: bool = False) -> LoopWakeup:
        return LoopWakeup(self._loop, self._waker, Patient if patient else Owed if owed else Abandonable)

    async def durable(self, log: Syncable, next_offset: int) -> None:
        if log.durable_offset >= next_offset:
            return
        if self._is_lone(log):
            self._synced_in_turn = True
            self._loop.call_soon(self._end_turn)
            self._sync_here(log)
        else:
            await self._group(log)
        if log.durable_offset < next_offset:
            # The sync began after the append, so only a truncation can have come between: the records are no more.
            raise BrokerError(Reason.NOT_LEADER, f"offset {next_offset - 1} was taken back by a new leader")

    def _is_lone(self, log: Syncable) -> bool:
        """Whether to sync at once. Who comes second in a turn shows that there are others, who can share a sync."""
        if self._synced_in_turn:
            self._lone_syncs = 0
        is_lone = self._lone_syncs >= LONE_SYNCS_MIN and not self._groups and not self._elsewhere
        return is_lone and self._is_quick(log)

    def _end_turn(self) -> None:
        self._synced_in_turn = False

    def sync_soon(self, log: Syncable, then: Callable[[], object]) -> None:
        def synced(group: "asyncio.Future[None]") -> None:
            if group.exception() is None:
                then()

        self._group(log).add_done_callback(synced)

    def _group(self, log: Syncable) -> "_Group":
        """The future of everyone who waits for the next sync of this partition."""
        group = self._groups.get(log)
        if group is None:
            group = self._groups[log] = _Group(loop=self._loop)
            # Not at once: whatever else this turn of the loop appends shares the sync.
            self._loop.call_soon(self._submit, log)
        group.waiters += 1
        return group

    def _submit(self, log: Syncable) -> None:
        is_quick = self._is_quick(log)
        if is_quick and log in self._elsewhere:
            # The flusher would begin after that one, too. Handed over, it would be there for the next to find, and so on.
            self._held_back.add(log)
            return
        group = self._groups.pop(log)
        is_only = not self._groups and not self._elsewhere
        is_alone = is_only and group.waiters == 1
        self._lone_syncs = self._lone_syncs + 1 if is_alone else 0
        if is_only and is_quick:
            try:
                self._sync_here(log)
            except StorageFault as fault:
                _settle(group, fault)
            else:
                _settle(group, None)
            return
        self._elsewhere[log] = self._elsewhere.get(log, 0) + 1

        def synced(fault: StorageFault | None) -> None:
            self._loop.call_soon_threadsafe(self._synced_elsewhere, log, group, fault)

        try:
            self._flusher.submit(log, synced)
        except BrokerError as error:  # the server stops: nobody will sync this, and nobody may wait for it for ever
            self._synced_elsewhere(log, group, error)

    def _synced_elsewhere(self, log: Syncable, group: "_Group", fault: StorageFault | BrokerError | None) -> None:
        self._elsewhere[log] -= 1
        _settle(group, fault)
        if not self._elsewhere[log]:
            del self._elsewhere[log]
            if log in self._held_back:
                self._held_back.remove(log)
                self._loop.call_soon(self._submit, log)

    def _is_quick(self, log: Syncable) -> bool:
        return log.unsynced_bytes <= SYNC_HERE_BYTES_MAX and self._clock.monotonic() >= self._may_sync_here_from

    def _sync_here(self, log: Syncable) -> None:
        start = self._clock.monotonic()
        log.sync()
        end = self._clock.monotonic()
        self.seconds.note(end - start)
        mean = self._mean_seconds
        mean = end - start if mean is None else mean + (end - start - mean) / MEAN_OF_SYNCS
        is_slow = mean > SYNC_HERE_SECONDS_MAX
        self._mean_seconds = None if is_slow else mean
        if is_slow:
            self._may_sync_here_from = end + SYNC_ELSEWHERE_FACTOR * max(end - start, mean)

    def blocking(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._loop.run_in_executor(None, work)


class _Group(asyncio.Future[None]):
    """Shared: one who waits and is ended does not end the wait of the others. It ends itself when the sync has."""

    waiters = 0

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - as asyncio calls it
        return False


def _settle(group: "asyncio.Future[None]", fault: StorageFault | BrokerError | None) -> None:
    if fault is None:
        group.set_result(None)
    else:
        group.set_exception(fault)
        group.exception()  # every waiter raises it; if all have gone, nobody needs to be told
