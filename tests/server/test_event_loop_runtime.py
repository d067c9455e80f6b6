"""The loop's world: many wait, one syncs; a fault reaches all; nothing waits for ever."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.server.toy import until

from braidlog.model.clock import Clock, SystemClock
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.server.event_loop_runtime import LONE_SYNCS_MIN, LOOP_SYNC_BYTES_MAX, WOKEN_AT_ONCE, EventLoopRuntime
from braidlog.storage.group_commit import Flusher
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.testing.clock import ManualClock


class StubLog:
    """A partition as far as durability goes. A closed gate holds its sync back."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.durable_offset = 0
        self.syncs = 0
        self.unsynced_bytes = 0
        self.thread: threading.Thread | None = None
        self.clock: ManualClock | None = None
        self.sync_ms = 0
        self.fault: StorageFault | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()

    def append(self) -> int:
        self.end_offset += 1
        return self.end_offset

    def sync(self) -> None:
        reached = self.end_offset
        self.syncs += 1
        self.thread = threading.current_thread()
        if self.clock is not None:
            self.clock.advance(self.sync_ms)
        self.started.set()
        assert self.gate.wait(10)
        if self.fault is not None:
            raise self.fault
        self.durable_offset = max(self.durable_offset, reached)


def play(scene: Callable[[EventLoopRuntime, StubLog], Any], clock: Clock | None = None) -> None:
    async def run() -> None:
        flusher = Flusher(SystemClock())
        try:
            async with asyncio.timeout(20):
                await scene(EventLoopRuntime(clock or SystemClock(), flusher), StubLog())
        finally:
            flusher.stop()

    asyncio.run(run())


def as_log(log: StubLog) -> PartitionLog:
    return cast("PartitionLog", log)


def test_many_waiters_share_one_sync() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        await asyncio.gather(*(runtime.durable(as_log(log), log.append()) for _ in range(100)))
        assert (log.durable_offset, log.syncs) == (100, 1)

    play(scene)


def test_a_small_sync_that_one_request_waits_for_runs_on_the_loop() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        for _ in range(3):
            await runtime.durable(as_log(log), log.append())
            assert log.thread is threading.current_thread()
        log.unsynced_bytes = LOOP_SYNC_BYTES_MAX + 1
        await runtime.durable(as_log(log), log.append())
        assert log.thread is not threading.current_thread()

    play(scene, ManualClock())  # on a busy machine any sync may seem slow


async def alone(runtime: EventLoopRuntime, log: StubLog) -> None:
    """Long enough to be believed to stay so."""
    for _ in range(LONE_SYNCS_MIN):
        await runtime.durable(as_log(log), log.append())


def waits(runtime: EventLoopRuntime, log: StubLog) -> bool:
    """Whether who asks now has to wait for anything."""
    asked = runtime.durable(as_log(log), log.append())
    try:
        asked.send(None)
    except StopIteration:
        return False
    asked.close()
    return True


def test_who_was_alone_for_a_while_does_not_wait_for_the_end_of_the_turn() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        for _ in range(LONE_SYNCS_MIN):
            asked = asyncio.ensure_future(runtime.durable(as_log(log), log.append()))
            await asyncio.sleep(0)
            assert not asked.done()
            await asked
        for _ in range(3):
            assert not waits(runtime, log)
            assert log.durable_offset == log.end_offset
            await asyncio.sleep(0)  # the next turn

    play(scene, ManualClock())  # on a busy machine any sync may seem slow


def test_who_comes_second_in_a_turn_shares_the_next_sync() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        await alone(runtime, log)
        before = log.syncs

        async def acknowledged() -> None:
            await runtime.durable(as_log(log), log.append())

        await asyncio.gather(*(acknowledged() for _ in range(50)))
        assert log.syncs == before + 2  # that of the first, and one of all the others
        await asyncio.gather(*(acknowledged() for _ in range(50)))
        assert log.syncs == before + 3  # nobody is alone any more
        await alone(runtime, log)
        assert not waits(runtime, log)

    play(scene, ManualClock())


def test_who_is_alone_waits_where_a_sync_is_large_or_under_way() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        await alone(runtime, log)
        other = StubLog()
        runtime.sync_soon(as_log(other), lambda: None)
        assert waits(runtime, log)
        await until(lambda: other.syncs == 1)
        await asyncio.sleep(0)
        log.unsynced_bytes = LOOP_SYNC_BYTES_MAX + 1
        assert waits(runtime, log)

    play(scene, ManualClock())


def test_a_fault_reaches_who_does_not_wait() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        await alone(runtime, log)
        log.fault = StorageFault("the disk is gone")
        with pytest.raises(StorageFault, match="gone"):
            waits(runtime, log)

    play(scene, ManualClock())


def test_a_sync_that_two_wait_for_runs_beside_the_loop() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        other = StubLog()
        waits = [runtime.durable(as_log(each), each.append()) for each in (log, other)]
        await asyncio.gather(*waits)
        assert threading.current_thread() not in (log.thread, other.thread)
        await runtime.durable(as_log(log), log.append())
        assert log.thread is threading.current_thread()

    play(scene, ManualClock())  # on a busy machine any sync may seem slow


def test_after_a_slow_sync_on_the_loop_the_next_ones_run_beside_it_for_a_while() -> None:
    clock = ManualClock()

    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        log.clock, log.sync_ms = clock, 500
        await runtime.durable(as_log(log), log.append())
        assert log.thread is threading.current_thread()
        log.sync_ms = 0
        clock.advance(9_000)
        await runtime.durable(as_log(log), log.append())
        assert log.thread is not threading.current_thread()
        clock.advance(1_100)
        await runtime.durable(as_log(log), log.append())
        assert log.thread is threading.current_thread()

    play(scene, clock)


def test_a_fault_of_a_sync_on_the_loop_reaches_who_waits() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        log.fault = StorageFault("the disk is gone")
        with pytest.raises(StorageFault, match="gone"):
            await runtime.durable(as_log(log), log.append())
        assert log.thread is threading.current_thread()

    play(scene)


def test_who_comes_while_a_sync_runs_waits_for_the_next() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        log.gate.clear()
        log.unsynced_bytes = LOOP_SYNC_BYTES_MAX + 1
        first = asyncio.ensure_future(runtime.durable(as_log(log), log.append()))
        await until(log.started.is_set)
        late = [asyncio.ensure_future(runtime.durable(as_log(log), log.append())) for _ in range(10)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in (first, *late))
        log.gate.set()
        await asyncio.gather(first, *late)
        assert (log.durable_offset, log.syncs) == (11, 2)

    play(scene)


def test_one_who_waits_and_is_ended_does_not_end_the_wait_of_the_others() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        log.gate.clear()
        log.unsynced_bytes = LOOP_SYNC_BYTES_MAX + 1
        ended, other = (asyncio.ensure_future(runtime.durable(as_log(log), log.append())) for _ in range(2))
        told: list[str] = []
        runtime.sync_soon(as_log(log), lambda: told.append("synced"))
        await until(log.started.is_set)
        ended.cancel()
        await asyncio.sleep(0)
        log.gate.set()
        await other
        await until(lambda: bool(told))
        with pytest.raises(asyncio.CancelledError):
            await ended

    play(scene)


def test_what_is_durable_is_not_waited_for() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        log.durable_offset = log.append()
        await runtime.durable(as_log(log), 1)
        assert log.syncs == 0

    play(scene)


def test_a_fault_reaches_all_who_wait() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        log.fault = StorageFault("the disk is broken")
        called: list[bool] = []
        waits = [runtime.durable(as_log(log), log.append()) for _ in range(20)]
        runtime.sync_soon(as_log(log), lambda: called.append(True))
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert results == [log.fault] * 20
        await asyncio.sleep(0)
        assert called == []

    play(scene)


def test_a_fault_nobody_waits_for_is_not_an_unheard_exception() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        heard: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        log.fault = StorageFault("the disk is broken")
        log.append()
        runtime.sync_soon(as_log(log), lambda: None)
        await until(lambda: log.syncs == 1)
        await asyncio.sleep(0.01)
        assert heard == []

    play(scene)


def test_partitions_do_not_wait_for_each_other() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        others = [StubLog() for _ in range(5)]
        await asyncio.gather(*(runtime.durable(as_log(each), each.append()) for each in (log, *others)))
        assert all(each.durable_offset == 1 for each in (log, *others))

    play(scene)


def test_soon_is_after_the_sync() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        log.append()
        seen: list[int] = []
        runtime.sync_soon(as_log(log), lambda: seen.append(log.durable_offset))
        runtime.sync_soon(as_log(log), lambda: seen.append(log.durable_offset))
        await until(lambda: len(seen) == 2)
        assert (seen, log.syncs) == ([1, 1], 1)

    play(scene)


def test_what_was_taken_back_is_not_durable_and_not_waited_for_for_ever() -> None:
    async def scene(runtime: EventLoopRuntime, log: StubLog) -> None:
        next_offset = log.append()
        log.gate.clear()
        waiting = asyncio.ensure_future(runtime.durable(as_log(log), next_offset))
        log.end_offset = 0  # a truncation
        log.gate.set()
        with pytest.raises(BrokerError) as caught:
            await waiting
        assert caught.value.reason is Reason.NOT_LEADER

    play(scene)


def test_when_the_flusher_has_stopped_nobody_waits_for_ever() -> None:
    async def run() -> None:
        flusher = Flusher(SystemClock())
        runtime, log = EventLoopRuntime(SystemClock(), flusher), StubLog()
        log.unsynced_bytes = LOOP_SYNC_BYTES_MAX + 1
        flusher.stop()
        with pytest.raises(BrokerError) as caught:
            async with asyncio.timeout(10):
                await runtime.durable(as_log(log), log.append())
        assert caught.value.reason is Reason.LOG_CLOSED

    asyncio.run(run())


def test_waking_and_running_out() -> None:
    async def scene(runtime: EventLoopRuntime, _: StubLog) -> None:
        wakeup = runtime.wakeup()
        asyncio.get_running_loop().call_soon(wakeup.wake)
        assert await wakeup.wait(10)
        wakeup.wake()
        assert await wakeup.wait(0), "woken before it waited"
        assert not await runtime.wakeup().wait(0.001)
        late = runtime.wakeup()
        assert not await late.wait(0)
        late.wake()

    play(scene)


def test_blocking_gives_back_results_and_errors() -> None:
    async def scene(runtime: EventLoopRuntime, _: StubLog) -> None:
        assert await runtime.blocking(threading.current_thread) is not threading.current_thread()

        def fail() -> None:
            raise StorageFault("no")

        with pytest.raises(StorageFault):
            await runtime.blocking(fail)

    play(scene)


def test_one_append_that_ends_thousands_of_waits_lets_others_have_their_turn() -> None:
    """As of a thousand connections with fifty long polls each, on one partition."""

    async def scene(runtime: EventLoopRuntime, _: StubLog) -> None:
        wakeups = [runtime.wakeup(patient=True) for _ in range(4 * WOKEN_AT_ONCE)]
        polls = [asyncio.ensure_future(each.wait(60.0)) for each in wakeups]
        await asyncio.sleep(0)
        for each in wakeups:
            each.wake()
            each.wake()  # twice is once
        woken, turns = 0, 0
        while woken < len(wakeups):
            before, woken = (
                woken,
                sum(each._future.done() for each in wakeups[woken : woken + 3 * WOKEN_AT_ONCE]) + woken,
            )
            assert woken - before <= WOKEN_AT_ONCE
            turns += 1
            await asyncio.sleep(0)
        assert turns >= len(wakeups) // WOKEN_AT_ONCE
        assert all(await asyncio.gather(*polls))

    play(scene)


def test_a_wait_in_line_to_be_woken_may_run_out_or_be_given_up() -> None:
    async def scene(runtime: EventLoopRuntime, _: StubLog) -> None:
        wakeups = [runtime.wakeup() for _ in range(WOKEN_AT_ONCE + 2)]
        polls = [asyncio.ensure_future(each.wait(60.0)) for each in wakeups]
        await asyncio.sleep(0)
        for each in wakeups:
            each.wake()
        wakeups[-2]._run_out()
        polls[-1].cancel()
        told = await asyncio.gather(*polls, return_exceptions=True)
        assert told[:-2] == [True] * WOKEN_AT_ONCE
        assert told[-2] is False
        assert isinstance(told[-1], asyncio.CancelledError)

    play(scene)


def test_work_within_its_time_gives_its_result_or_its_error() -> None:
    async def scene(runtime: EventLoopRuntime, _: StubLog) -> None:
        assert await runtime.within(60, at_once(7)) == 7
        gate = runtime.wakeup()
        asyncio.get_running_loop().call_soon(gate.wake)
        assert await runtime.within(60, after(gate, 8)) == 8
        refused = BrokerError(Reason.UNAVAILABLE, "no")
        with pytest.raises(BrokerError, match="no"):
            await runtime.within(60, at_once(refused))

    play(scene)


async def at_once(result: object) -> object:
    if isinstance(result, Exception):
        raise result
    return result


async def after(gate: Any, result: object) -> object:
    await gate.wait(60)
    return await at_once(result)


def test_work_whose_time_is_over_ends_where_nothing_is_half_done_else_it_finishes() -> None:
    async def scene(runtime: EventLoopRuntime, _: StubLog) -> None:
        ended, finished, release = list[str](), list[str](), threading.Event()

        async def in_line() -> None:
            try:
                await runtime.wakeup().wait(60)
            finally:
                ended.append("in line")

        async def on_disk() -> None:
            await runtime.blocking(lambda: release.wait(60))
            finished.append("on disk")
            raise AssertionError("a defect that no request hears of")

        with pytest.raises(BrokerError, match=r"not done within 0\.01 s") as caught:
            await runtime.within(0.01, in_line())
        assert (caught.value.reason, ended) == (Reason.TIMED_OUT, ["in line"])
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        with pytest.raises(BrokerError, match="check the result before you retry"):
            await runtime.within(0.01, on_disk())
        assert finished == []
        release.set()
        await until(lambda: bool(told))
        assert (finished, told) == (["on disk"], ["a defect that no request hears of"])
        with pytest.raises(BrokerError, match="nothing was changed"):
            await runtime.within(0, in_line())
        assert ended == ["in line"], "it was not begun"

    play(scene)


def test_work_ends_with_its_waiter() -> None:
    async def scene(runtime: EventLoopRuntime, _: StubLog) -> None:
        ended = list[str]()

        async def in_line() -> None:
            try:
                await runtime.wakeup().wait(60)
            finally:
                ended.append("in line")

        waiter = runtime.within(60, in_line())
        waiter.send(None)
        waiter.close()
        assert ended == ["in line"]

    play(scene)
