"""The services' runtime on an event loop: durability, wakeups, timeouts, blocking work.

Invariant: a wait for durability succeeds only after a sync that began after the append. Concurrent waiters of one
partition share a sync and a future.

Syncs run on the flusher's thread. A small sync with a single waiter runs on the loop while the disk is fast, which
saves two thread switches. After several of them in a row, the next one runs immediately: no other request would share
it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from braidlog.model.clock import Clock, DurationHistogram
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.runtime import Syncable, timed_out
from braidlog.server.net.scheduler import Cancellable, Deferrable, MustFinish, Parked, Polling, start
from braidlog.storage.group_commit import Flusher

T = TypeVar("T")

LOOP_SYNC_BYTES_MAX = 64 * 1024
LOOP_SYNC_SECONDS_MAX = 0.001
"""After a slower sync on the loop, which blocks every client, syncs run on the flusher's thread for a while."""
SYNC_ELSEWHERE_FACTOR = 20
"""That while, in multiples of the slow sync's time: slow syncs use at most 1/20 of the loop's time."""
LONE_SYNCS_MIN = 8
"""After this many consecutive syncs with a single waiter, the next one is assumed to have a single waiter too."""

WOKEN_AT_ONCE = 1000
"""Maximum waits that end in one turn of the loop: one append may complete fifty thousand long polls."""


class Waker:
    """Ends waits: `WOKEN_AT_ONCE` per turn of the loop, the rest in later turns."""

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
            if not future.done():  # it may have timed out, or its client disconnected
                self._left -= 1
                future.set_result(True)
        if self._left < WOKEN_AT_ONCE:
            self._loop.call_soon(self._go_on)


class LoopWakeup:
    """A wait that ends by `wake` or by its timeout."""

    __slots__ = ("_future", "_loop", "_waker")

    def __init__(self, loop: asyncio.AbstractEventLoop, waker: Waker, kind: type[Cancellable[bool]]) -> None:
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


class EventLoopRuntime:
    """Implements model/runtime/runtime.py on this loop."""

    def __init__(self, clock: Clock, flusher: Flusher) -> None:
        self._clock = clock
        self.now_ms, self.monotonic = clock.now_ms, clock.monotonic
        self._flusher = flusher
        self.appended = flusher.appended
        self._loop = asyncio.get_running_loop()
        self._waker = Waker(self._loop)
        self._groups: dict[Syncable, asyncio.Future[None]] = {}
        self._waiters = 0
        self._syncs_elsewhere = 0
        self._may_sync_here_from = clock.monotonic()
        self._lone_syncs = 0
        self._synced_in_turn = False
        self.seconds = DurationHistogram()
        """Durations of the syncs on the loop."""

    def wakeup(
        self, *, patient: bool = False, owed: bool = False, parked: bool = False, polling: bool = False
    ) -> LoopWakeup:
        other: type[Cancellable[bool]] = Parked if parked else Polling if polling else Cancellable
        kind: type[Cancellable[bool]] = Deferrable if patient else MustFinish if owed else other
        return LoopWakeup(self._loop, self._waker, kind)

    async def within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        outcome = list[tuple[T, BaseException | None]]()
        ended, is_late = self.wakeup(owed=True), False

        def done(value: T, error: BaseException | None) -> None:
            outcome.append((value, error))
            ended.wake()
            if is_late and error is not None and not isinstance(error, (BrokerError, StorageFault)):
                raise error  # the waiter has left: the loop's handler reports the defect

        if seconds <= 0:
            work.close()
        elif (running := start(work, done)) is not None:
            try:
                await ended.wait(seconds)
            finally:
                if not outcome:
                    is_late = True
                    running.cancel()
        if not outcome:
            raise timed_out(seconds)
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    async def durable(self, log: Syncable, next_offset: int) -> None:
        if log.durable_offset >= next_offset:
            return
        if self._is_lone(log):
            self._synced_in_turn = True
            self._loop.call_soon(self._end_turn)
            self._sync_on_loop(log)
        else:
            self._waiters += 1
            await self._group(log)
        if log.durable_offset < next_offset:
            # The sync began after the append, so only a truncation can have removed the records.
            raise BrokerError(Reason.NOT_LEADER, f"offset {next_offset - 1} was taken back by a new leader")

    def _is_lone(self, log: Syncable) -> bool:
        """Whether to sync immediately. A second request in the same turn shows that requests can share a sync."""
        if self._synced_in_turn:
            self._lone_syncs = 0
        is_lone = self._lone_syncs >= LONE_SYNCS_MIN and not self._groups and not self._syncs_elsewhere
        return is_lone and self._is_quick(log)

    def _end_turn(self) -> None:
        self._synced_in_turn = False

    def sync_soon(self, log: Syncable, then: Callable[[], object]) -> None:
        def synced(group: "asyncio.Future[None]") -> None:
            if group.exception() is None:
                then()

        self._waiters += 1
        self._group(log).add_done_callback(synced)

    def _group(self, log: Syncable) -> "asyncio.Future[None]":
        """Return the future that all waiters for this partition's next sync share."""
        group = self._groups.get(log)
        if group is None:
            group = self._groups[log] = _Group(loop=self._loop)
            # Deferred: other appends of this turn of the loop share the sync.
            self._loop.call_soon(self._submit, log)
        return group

    def _submit(self, log: Syncable) -> None:
        group = self._groups.pop(log)
        is_alone = self._waiters == 1 and not self._syncs_elsewhere
        if not self._groups:
            self._waiters = 0
        if is_alone and self._is_quick(log):
            self._lone_syncs += 1
            try:
                self._sync_on_loop(log)
            except StorageFault as fault:
                _settle(group, fault)
            else:
                _settle(group, None)
            return
        if not is_alone:
            self._lone_syncs = 0
        self._syncs_elsewhere += 1

        def synced(fault: StorageFault | None) -> None:
            self._loop.call_soon_threadsafe(self._synced_elsewhere, group, fault)

        try:
            self._flusher.submit(log, synced)
        except BrokerError as error:  # the server stops: no sync will come, so the wait must end
            self._synced_elsewhere(group, error)

    def _synced_elsewhere(self, group: "asyncio.Future[None]", fault: StorageFault | BrokerError | None) -> None:
        self._syncs_elsewhere -= 1
        _settle(group, fault)

    def _is_quick(self, log: Syncable) -> bool:
        return log.unsynced_bytes <= LOOP_SYNC_BYTES_MAX and self._clock.monotonic() >= self._may_sync_here_from

    def _sync_on_loop(self, log: Syncable) -> None:
        start = self._clock.monotonic()
        log.sync()
        end = self._clock.monotonic()
        self.seconds.note(end - start)
        if end - start > LOOP_SYNC_SECONDS_MAX:
            self._may_sync_here_from = end + SYNC_ELSEWHERE_FACTOR * (end - start)

    def blocking(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._loop.run_in_executor(None, work)


class _Group(asyncio.Future[None]):
    """A shared future: cancelling one waiter does not cancel the others."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - as asyncio calls it
        return False


def _settle(group: "asyncio.Future[None]", fault: StorageFault | BrokerError | None) -> None:
    if fault is None:
        group.set_result(None)
    else:
        group.set_exception(fault)
        group.exception()  # mark it retrieved: all waiters may have been cancelled
