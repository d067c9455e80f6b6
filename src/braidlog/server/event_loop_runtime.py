"""The ports of the services on an event loop.

Knows: futures, the flusher's thread, the executor. Refuses to know: what is waited for.
Invariant: a wait for durability ends well only after a sync that began after the append; all who wait for one partition at a
time share one sync and one future. Syncs run on the flusher's thread; only a small one, for which a single request waits, runs
on the loop, where it spares two hand-overs between threads, and only as long as the disk is quick. After several of these in a
row the next one does not wait for the end of its turn either: nobody is there to share it.
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
"""A sync on the loop that took longer was the last one there for a while: everybody else stood still meanwhile."""
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
    """What model/runtime/runtime.py asks for, on this loop."""

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
        """What the syncs on the loop took."""

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
            # The sync began after the append, so only a truncation can have come between: the records are no more.
            raise BrokerError(Reason.NOT_LEADER, f"offset {next_offset - 1} was taken back by a new leader")

    def _is_lone(self, log: Syncable) -> bool:
        """Whether to sync at once. Who comes second in a turn shows that there are others, who can share a sync."""
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
        """The future of everyone who waits for the next sync of this partition."""
        group = self._groups.get(log)
        if group is None:
            group = self._groups[log] = _Group(loop=self._loop)
            # Not at once: whatever else this turn of the loop appends shares the sync.
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
        except BrokerError as error:  # the server stops: nobody will sync this, and nobody may wait for it for ever
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
    """Shared: one who waits and is ended does not end the wait of the others. It ends itself when the sync has."""

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - as asyncio calls it
        return False


def _settle(group: "asyncio.Future[None]", fault: StorageFault | BrokerError | None) -> None:
    if fault is None:
        group.set_result(None)
    else:
        group.set_exception(fault)
        group.exception()  # every waiter raises it; if all have gone, nobody needs to be told
