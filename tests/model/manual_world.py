"""A world for the services that stands still between steps: time, waking and durability as a test says.

Knows: which coroutines wait for what, and in which order they go on. Refuses to know: event loops, threads, the machine's clocks.
Invariant: the same calls (and the same seed) give the same interleaving; nothing moves but by `run`, `advance` and `sync`.

    world = ManualRuntime(ManualClock())
    answer = world.run(services.topics.create("a", 1))       run one coroutine, and whatever else can move, to its end
    job = world.spawn(services.fetch.records(...))             begin one, and leave it where it waits
    world.advance(500)                                       half a second later
    with world.holding_syncs(): ...                          nothing becomes durable until `runtime.sync()`
"""

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from random import Random
from typing import Any, Generic, TypeVar

from braidlog.model.runtime.runtime import Syncable, timed_out
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.testing.clock import ManualClock

T = TypeVar("T")


class StuckError(Exception):
    """A coroutine waits for something that nobody will bring about."""


class _Gate:
    """What a job waits on. It yields itself to the world, which resumes the job once it is open."""

    __slots__ = ("is_open", "is_wakeup", "jobs")

    def __init__(self, *, is_wakeup: bool = False) -> None:
        self.is_open = False
        self.is_wakeup = is_wakeup
        self.jobs: list[Job[Any]] = []

    def __await__(self) -> Generator["_Gate", None, None]:
        if not self.is_open:
            yield self


class Job(Generic[T]):
    """A coroutine on its way. `is_done`, then `result()`."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._result: T | None = None
        self.error: Exception | None = None
        self.is_done = self.is_cancelled = False
        self.may_end = False
        """Whether it waits on a `Wakeup`."""

    def result(self) -> T:
        if not self.is_done:
            raise StuckError(f"{self._coroutine} still waits")
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]

    def step(self) -> _Gate | None:
        """Go on until the next wait; None when it ended, or only lets others go first.

        A `Crash` is not an error of the job: it ends the world.
        """
        try:
            gate: _Gate = self._coroutine.send(None)
        except StopIteration as stop:
            self._result = stop.value
        except Exception as error:  # noqa: BLE001 - kept for whoever asks for the result
            self.error = error
        else:
            self.may_end = getattr(gate, "is_wakeup", False)
            return gate
        self.is_done = True
        return None

    def cancel(self) -> None:
        """End it where it waits, as a connection that is lost does."""
        self._coroutine.close()
        self.is_done = self.is_cancelled = True


class ManualWakeup:
    """A `Wakeup` on the world's clock."""

    def __init__(self, runtime: "ManualRuntime") -> None:
        self._runtime = runtime
        self._gate = _Gate(is_wakeup=True)
        self._woken = False

    def wake(self) -> None:
        if not self._gate.is_open:
            self._woken = True
            self._runtime.open(self._gate)

    def _run_out(self) -> None:
        self._runtime.open(self._gate)

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109 - the port has no loop to cancel with
        timer = self._runtime.call_at(self._runtime.monotonic() + timeout, self._run_out)
        try:
            await self._gate
        finally:
            self._runtime.drop_timer(timer)
        return self._woken


class ManualRuntime:
    """A `Runtime` that a test drives. With `rng` the next of those that can go on is drawn, else it is the one longest ready."""

    def __init__(self, clock: ManualClock, *, rng: Random | None = None) -> None:
        self.clock = clock
        self.syncs = 0
        self._rng = rng
        self._ready: deque[Job[Any]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timers_made = 0
        self._held: list[tuple[Syncable, _Gate]] = []
        self._holding = False
        self._held_log: Syncable | None = None

    # -- the port --------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def wakeup(self, **_: bool) -> ManualWakeup:
        return ManualWakeup(self)

    async def durable(self, log: Syncable, next_offset: int) -> None:
        """Like the real one, this always lets others go first: they may share the sync, and races can show themselves."""
        if log.durable_offset >= next_offset:
            return
        if self._holding and self._held_log in (None, log):
            gate = _Gate()
            self._held.append((log, gate))
            await gate
        else:
            await self.pause()
        if log.durable_offset < next_offset:
            self._sync_one(log)

    def sync_soon(self, log: Syncable, then: Callable[[], object]) -> None:
        assert isinstance(log, PartitionLog)

        async def later() -> None:
            await self.durable(log, log.end_offset)
            then()

        self.spawn(later())

    def appended(self, log: Syncable) -> None:
        """Intervals and windows are the flusher's affair; here such records stay un-synced until `sync`."""

    async def within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        if seconds <= 0:
            work.close()
            raise timed_out(seconds)
        ended = self.wakeup()

        async def run() -> T:
            try:
                return await work
            finally:
                ended.wake()

        job = self.spawn(run())
        try:
            await ended.wait(seconds)
        finally:
            if not job.is_done and job.may_end:
                job.cancel()
        if not job.is_done or job.is_cancelled:
            raise timed_out(seconds)
        return job.result()

    async def blocking(self, work: Callable[[], T]) -> T:
        await self.pause()
        result = work()
        await self.pause()
        return result

    # -- what a test does ------------------------------------------------------------------------------------

    def run(self, coroutine: Awaitable[T]) -> T:
        """Run to the end; raise `StuckError` if it waits for time or a sync that only the test can bring about."""
        job = self.spawn(coroutine)
        self.settle()
        return job.result()

    def spawn(self, coroutine: Awaitable[T]) -> Job[T]:
        """Begin a coroutine; it has run to its first wait when this returns."""
        assert isinstance(coroutine, Coroutine)
        job: Job[T] = Job(coroutine)
        self._step(job)
        return job

    def settle(self) -> None:
        """Let everything move that can."""
        while self._ready:
            if self._rng is not None:
                self._ready.rotate(self._rng.randrange(len(self._ready)))
            self._step(self._ready.popleft())

    def advance(self, ms: int) -> None:
        """Let time pass, stopping at every timer on the way."""
        until = self.clock.monotonic() + ms / 1000
        self.settle()
        while (due := min(self._timers, default=None, key=lambda timer: timer[:2])) is not None and due[0] <= until:
            self._timers.remove(due)
            missing = round((due[0] - self.clock.monotonic()) * 1000)
            self.clock.advance(max(missing, 0))
            due[2]()
            self.settle()
        self.clock.advance(max(round((until - self.clock.monotonic()) * 1000), 0))

    @contextlib.contextmanager
    def holding_syncs(self, log: Syncable | None = None) -> Iterator[None]:
        """Inside, nothing (of `log`, or at all) becomes durable but by `sync()`; what is still held at the end is synced then."""
        self._holding, self._held_log = True, log
        try:
            yield
        finally:
            self._holding = False
        self.sync()

    def sync(self) -> None:
        """Sync what is waited for, and let who waited go on."""
        held, self._held = self._held, []
        for log in dict.fromkeys(log for log, _ in held):
            with contextlib.suppress(Exception):  # each waiter meets the partition's fault itself
                self._sync_one(log)
        for _, gate in held:
            self.open(gate)
        self.settle()

    async def pause(self) -> None:
        """Let others go first."""
        gate = _Gate()
        self._timers_made += 1
        self._ready.append(_Opening(self, gate))
        await gate

    # -- inside ----------------------------------------------------------------------------------------------

    def _sync_one(self, log: Syncable) -> None:
        self.syncs += 1
        log.sync()

    def _step(self, job: Job[Any]) -> None:
        if job.is_done:
            return
        gate = job.step()
        if job.is_done:
            return
        if gate is None or gate.is_open:  # None: a bare `yield`, to let others have their turn
            self._ready.append(job)
        else:
            gate.jobs.append(job)

    def open(self, gate: _Gate) -> None:
        gate.is_open = True
        self._ready.extend(gate.jobs)
        gate.jobs.clear()

    def call_at(self, when: float, call: Callable[[], None]) -> tuple[float, int, Callable[[], None]]:
        self._timers_made += 1
        timer = (when, self._timers_made, call)
        self._timers.append(timer)
        return timer

    def drop_timer(self, timer: tuple[float, int, Callable[[], None]]) -> None:
        if timer in self._timers:
            self._timers.remove(timer)


class _Opening(Job[None]):
    """Opens a gate when its turn comes. No coroutine: a world that ends in a crash would leave it behind unrun."""

    def __init__(self, runtime: ManualRuntime, gate: _Gate) -> None:
        self._runtime = runtime
        self._gate = gate
        self.is_done = False

    def step(self) -> None:
        self._runtime.open(self._gate)
        self.is_done = True
