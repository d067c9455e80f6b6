"""Time that passes as fast as it can be computed: one heap of what is to happen, and coroutines that wait on it.

Knows: what happens next, and in which order. Refuses to know: the machine's clocks, threads, event loops.
Invariant: actions run in the order of (time, number), one at a time, so the same actions give the same run.
"""

import heapq
from collections.abc import Awaitable, Callable, Coroutine, Generator
from random import Random
from typing import Any, TypeVar

from braidlog.model.runtime.runtime import Syncable

T = TypeVar("T")
US_PER_MS = 1_000
US_PER_SECOND = 1_000_000


def stream(seed: object, name: str) -> Random:
    """Randomness by name: what one part of a run draws does not move what another part draws."""
    return Random(f"{seed}/{name}")


class VirtualTime:
    """The heap."""

    def __init__(self) -> None:
        self.now_us = 0
        self.actions = 0
        self._numbers = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []

    def after(self, us: int, action: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (self.now_us + max(us, 0), self._numbers, action))

    def run(self, until_us: int, *, done: Callable[[], bool] = lambda: False) -> None:
        """Everything that is due up to then, or until `done`."""
        heap = self._heap
        while heap and heap[0][0] <= until_us and not done():
            self.now_us, _, action = heapq.heappop(heap)
            self.actions += 1
            action()
        if not done():
            self.now_us = until_us


class _Gate:
    """What a job waits on: it yields itself to the job, which goes on once the gate is open."""

    __slots__ = ("is_open", "job")

    def __init__(self) -> None:
        self.is_open = False
        self.job: Job | None = None

    def __await__(self) -> Generator["_Gate", None, None]:
        if not self.is_open:
            yield self


class Job:
    """A coroutine on virtual time. What it raises goes to whoever runs the heap."""

    def __init__(
        self,
        time: VirtualTime,
        coroutine: Coroutine[Any, Any, object],
        enter: Callable[[Callable[[], None]], None],
    ) -> None:
        self._time = time
        self._coroutine = coroutine
        self._enter = enter
        self.is_over = False

    def go_on(self) -> None:
        if self.is_over:
            return
        try:
            gate: _Gate | None = self._coroutine.send(None)
        except StopIteration:
            self.is_over = True
            return
        except BaseException:
            self.is_over = True
            raise
        if gate is not None:
            gate.job = self
        if gate is None or gate.is_open:  # it only lets others go first, or has nothing to wait for
            self._time.after(0, lambda: self._enter(self.go_on))

    def cancel(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._coroutine.close()


class VirtualWakeup:
    """A `Wakeup`."""

    __slots__ = ("_enter", "_gate", "_time", "_woken")

    def __init__(self, time: VirtualTime, enter: Callable[[Callable[[], None]], None]) -> None:
        self._time = time
        self._enter = enter
        self._gate = _Gate()
        self._woken = False

    def wake(self) -> None:
        if not self._gate.is_open:
            self._woken = True
            self._open()

    def _open(self) -> None:
        if self._gate.is_open:
            return
        self._gate.is_open = True
        if self._gate.job is not None:
            job = self._gate.job
            self._time.after(0, lambda: self._enter(job.go_on))

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109 - the port has no loop to cancel with
        self._time.after(round(timeout * US_PER_SECOND), self._open)
        await self._gate
        return self._woken


class VirtualWorld:
    """A `Runtime` of one node: its clocks run at their own rate and from their own beginning. `enter` runs what is a node's."""

    def __init__(
        self,
        time: VirtualTime,
        *,
        rate: float = 1.0,
        ahead_ms: int = 0,
        enter: Callable[[Callable[[], None]], None] = lambda action: action(),
    ) -> None:
        self.time = time
        self.rate = rate
        self.ahead_ms = ahead_ms
        self._enter = enter

    def monotonic(self) -> float:
        return self.time.now_us * self.rate / US_PER_SECOND

    def monotonic_ms(self) -> int:
        return int(self.time.now_us * self.rate) // US_PER_MS

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.monotonic_ms() + self.ahead_ms

    def wakeup(self, **_: bool) -> VirtualWakeup:
        return VirtualWakeup(self.time, self._enter)

    def within(self, seconds: float, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        raise AssertionError(f"{work} is administration, and has no {seconds} s here")

    async def blocking(self, work: Callable[[], T]) -> T:
        await self.wakeup().wait(0.001)
        return work()

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> Job:
        job = Job(self.time, coroutine, self._enter)
        self.time.after(0, lambda: self._enter(job.go_on))
        return job

    def durable(self, log: Syncable, next_offset: int) -> Awaitable[None]:
        raise AssertionError(f"{log} is synced as its replica asks for it, not up to {next_offset}")

    def appended(self, log: Syncable) -> None:
        """Nobody waits for it."""

    def sync_soon(self, log: Syncable, then: Callable[[], object]) -> None:
        raise AssertionError(f"{log} is synced as its replica asks for it, not for {then}")
