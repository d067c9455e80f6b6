"""The ports of the services on an event loop.

Knows: futures, the flusher's thread, the executor. Refuses to know: what is waited for.
Invariant: a wait for durability ends well only after a sync that began after the append; all who wait for one partition at a
time share one sync and one future.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from braidlog.model.clock import Clock
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.server.eager import Abandonable, Patient
from braidlog.storage.commit import Flusher
from braidlog.storage.partition import PartitionLog

T = TypeVar("T")


class LoopWakeup:
    """A future that can be woken or run out."""

    __slots__ = ("_future", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, patient: bool) -> None:
        self._loop = loop
        self._future: Abandonable[bool] = Patient(loop=loop) if patient else Abandonable(loop=loop)

    def wake(self) -> None:
        if not self._future.done():
            self._future.set_result(True)

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
    """What broker/ports.py asks for, on this loop."""

    def __init__(self, clock: Clock, flusher: Flusher) -> None:
        self._clock = clock
        self._flusher = flusher
        self._loop = asyncio.get_running_loop()
        self._groups: dict[PartitionLog, asyncio.Future[None]] = {}

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wakeup(self, *, patient: bool = False) -> LoopWakeup:
        return LoopWakeup(self._loop, patient=patient)

    async def durable(self, log: PartitionLog, next_offset: int) -> None:
        if log.durable_offset >= next_offset:
            return
        await self._group(log)
        if log.durable_offset < next_offset:
            # The sync began after the append, so only a truncation can have come between: the records are no more.
            raise BrokerError(Reason.NOT_LEADER, f"offset {next_offset - 1} was taken back by a new leader")

    def sync_soon(self, log: PartitionLog, then: Callable[[], object]) -> None:
        def synced(group: "asyncio.Future[None]") -> None:
            if group.exception() is None:
                then()

        self._group(log).add_done_callback(synced)

    def _group(self, log: PartitionLog) -> "asyncio.Future[None]":
        """The future of everyone who waits for the next sync of this partition."""
        group = self._groups.get(log)
        if group is None:
            group = self._groups[log] = self._loop.create_future()
            # Not at once: whatever else this turn of the loop appends shares the sync.
            self._loop.call_soon(self._submit, log)
        return group

    def _submit(self, log: PartitionLog) -> None:
        group = self._groups.pop(log)

        def synced(fault: StorageFault | None) -> None:
            self._loop.call_soon_threadsafe(_settle, group, fault)

        try:
            self._flusher.submit(log, synced)
        except BrokerError as error:  # the server stops: nobody will sync this, and nobody may wait for it for ever
            _settle(group, error)

    def appended(self, log: PartitionLog) -> None:
        self._flusher.appended(log)

    def blocking(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._loop.run_in_executor(None, work)


def _settle(group: "asyncio.Future[None]", fault: StorageFault | BrokerError | None) -> None:
    if fault is None:
        group.set_result(None)
    else:
        group.set_exception(fault)
        group.exception()  # every waiter raises it; if all have gone, nobody needs to be told
