"""A coroutine run eagerly ends as a task would: results, errors, waits. What is half done is not ended half-way.

Connections in line: one piece of work of each, and the loop's sockets in between.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from time import thread_time
from typing import Any

import pytest
from tests.server.toy import until

from braidlog.server.net.scheduler import (
    AT_ONCE,
    QUICK,
    SLICE_REQUESTS,
    SLICE_REQUESTS_MIN,
    SLICE_SECONDS,
    SLOW,
    UNKNOWN,
    Cancellable,
    Deferrable,
    FairScheduler,
    Running,
    start,
)


class Sink:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, BaseException | None]] = []

    def __call__(self, result: Any, error: BaseException | None) -> None:
        self.calls.append((result, error))


async def outcome_of_task(work: Coroutine[Any, Any, Any]) -> tuple[Any, str | None]:
    try:
        return await asyncio.get_running_loop().create_task(work), None
    except Exception as error:  # noqa: BLE001
        return None, repr(error)


async def outcome_of_eager(work: Coroutine[Any, Any, Any]) -> tuple[Any, str | None]:
    sink = Sink()
    start(work, sink)
    await until(lambda: bool(sink.calls))
    assert len(sink.calls) == 1
    result, error = sink.calls[0]
    return result, None if error is None else repr(error)


# -- the same end as a task ----------------------------------------------------------------------------------


async def at_once() -> int:
    return 7


async def fails_at_once() -> int:
    raise ValueError("no")


async def waits() -> list[int]:
    loop = asyncio.get_running_loop()
    found = []
    for number in range(5):
        future = loop.create_future()
        loop.call_soon(future.set_result, number)
        found.append(await future)
    return found


async def fails_later() -> None:
    await waits()
    raise ValueError("later")


async def catches() -> str:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_exception, ValueError("inside"))
    try:
        await future
    except ValueError as error:
        return f"caught {error}"
    return "not raised"


async def yields() -> str:
    for _ in range(3):
        await asyncio.sleep(0)
    return "after three turns"


async def sleeps() -> str:
    await asyncio.sleep(0.001)
    return "slept"


async def done_already() -> int:
    future = asyncio.get_running_loop().create_future()
    future.set_result(3)
    return int(await future)


async def shares() -> list[int]:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(future.set_result, 1)
    return [await future, await future]


async def waits_for_a_thread() -> int:
    return await asyncio.get_running_loop().run_in_executor(None, lambda: 11)


async def waits_for_what_is_cancelled() -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.cancel)
    try:
        await future
    except asyncio.CancelledError:
        raise ValueError("it was cancelled") from None


@pytest.mark.parametrize(
    "make",
    [
        at_once,
        fails_at_once,
        waits,
        fails_later,
        catches,
        yields,
        sleeps,
        done_already,
        shares,
        waits_for_a_thread,
        waits_for_what_is_cancelled,
    ],
)
def test_it_ends_as_a_task_does(make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    async def both() -> None:
        assert await outcome_of_eager(make()) == await outcome_of_task(make())

    asyncio.run(both())


def test_what_does_not_wait_is_done_when_start_returns() -> None:
    sink = Sink()
    assert start(at_once(), sink) is None
    assert sink.calls == [(7, None)]


def test_an_interrupt_is_not_an_answer() -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    sink = Sink()
    with pytest.raises(KeyboardInterrupt):
        start(interrupted(), sink)
    assert sink.calls == []


# -- ending early --------------------------------------------------------------------------------------------


class Steps:
    """Waits on futures of the given kinds, in order; notes how far it came and whether it was cleaned up."""

    def __init__(self, *kinds: type[asyncio.Future[Any]]) -> None:
        self.futures = [kind(loop=asyncio.get_running_loop()) for kind in kinds]
        self.reached = 0
        self.cleaned = False

    async def run(self) -> str:
        try:
            for future in self.futures:
                await future
                self.reached += 1
            return "whole"
        finally:
            self.cleaned = True


def begun(steps: Steps, sink: Sink) -> Running:
    running = start(steps.run(), sink)
    assert running is not None
    return running


def test_a_long_poll_ends_where_it_waits() -> None:
    async def scene() -> None:
        steps, sink = Steps(Cancellable), Sink()
        begun(steps, sink).cancel()
        assert steps.cleaned
        steps.futures[0].set_result(None)
        await asyncio.sleep(0)
        assert (steps.reached, sink.calls) == (0, [])

    asyncio.run(scene())


def test_a_change_goes_on_to_its_end() -> None:
    async def scene() -> None:
        steps, sink = Steps(asyncio.Future, asyncio.Future), Sink()
        begun(steps, sink).cancel()
        assert not steps.cleaned
        for future in steps.futures:
            future.set_result(None)
            await asyncio.sleep(0)
        await until(lambda: bool(sink.calls))
        assert sink.calls == [("whole", None)]

    asyncio.run(scene())


def test_after_a_change_it_ends_at_the_next_place_where_nothing_is_half_done() -> None:
    async def scene() -> None:
        steps, sink = Steps(asyncio.Future, Cancellable), Sink()
        begun(steps, sink).cancel()
        steps.futures[0].set_result(None)
        await until(lambda: steps.cleaned)
        assert (steps.reached, sink.calls) == (1, [])

    asyncio.run(scene())


def test_ending_in_the_moment_it_is_woken() -> None:
    async def scene() -> None:
        steps, sink = Steps(Cancellable), Sink()
        running = begun(steps, sink)
        steps.futures[0].set_result(None)
        running.cancel()
        running.cancel()
        await asyncio.sleep(0)
        assert steps.cleaned
        assert sink.calls == []

    asyncio.run(scene())


def test_a_coroutine_whose_time_is_up_ends_every_later_long_poll_at_its_beginning() -> None:
    async def scene() -> None:
        steps, sink = Steps(asyncio.Future, Deferrable, Deferrable), Sink()
        assert not begun(steps, sink).run_out(), "it waits for no long poll yet"
        steps.futures[0].set_result(None)
        await until(lambda: bool(sink.calls))
        assert [future.result() for future in steps.futures] == [None, False, False]

    asyncio.run(scene())


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def with_deadline() -> None:
        async with asyncio.timeout(60):
            await scene

    asyncio.run(with_deadline())


async def none_left(turns: FairScheduler) -> None:
    while turns.crowd:  # noqa: ASYNC110 - turns of the loop are what is waited for
        await asyncio.sleep(0)


def test_one_piece_of_each_after_the_other_and_each_in_its_order() -> None:
    async def scene() -> None:
        turns, done = FairScheduler(), list[str]()
        for number in range(3):
            for who in "ab":
                turns.wait(who, partial(done.append, f"{who}{number}"))
        turns.wait("c", lambda: done.append("c0"))
        assert (turns.crowd, done) == (3, [])
        await none_left(turns)
        assert done == ["a0", "b0", "c0", "a1", "b1", "a2", "b2"]

    play(scene())


def test_work_that_takes_long_lets_the_loop_look_at_its_sockets() -> None:
    """However many wait: a clock that moves a second at every look ends the turn after each piece."""

    async def scene() -> None:
        seconds = count()
        turns, done = FairScheduler(lambda: next(seconds)), list[int]()
        for number in range(100):
            turns.wait(number, partial(done.append, number))
        for served in range(1, 4):
            await asyncio.sleep(0)
            assert len(done) == served

    play(scene())


def test_a_few_waits_that_end_together_go_on_at_once_and_many_in_their_turns() -> None:
    async def scene() -> None:
        turns, done = FairScheduler(), list[int]()
        for number in range(AT_ONCE + 100):
            turns.go_on("flood", partial(done.append, number))
        assert len(done) == AT_ONCE
        turns.go_on("other", lambda: done.append(-1))
        await none_left(turns)
        assert done.index(-1) == AT_ONCE + 1, "it waits for one of the many, and not for all"
        assert [said for said in done if said >= 0] == list(range(AT_ONCE + 100))
        turns.go_on("other", lambda: done.append(-2))
        assert done[-1] == -2, "another turn of the loop, and nobody waits"

    play(scene())


def test_an_append_does_not_stand_behind_the_long_polls_that_it_has_woken() -> None:
    async def scene() -> None:
        turns, done = FairScheduler(), list[int]()
        for number in range(AT_ONCE + 100):
            turns.go_on(number, partial(done.append, number), is_poll=True)
        assert len(done) == AT_ONCE // 2
        turns.go_on("appended", lambda: done.append(-1))
        assert done[-1] == -1, "long polls leave room for it"
        for number in range(AT_ONCE):
            turns.go_on("flood", partial(done.append, -2 - number))
        await none_left(turns)
        owed = [at for at, said in enumerate(done) if said < -1]
        assert len(owed) == AT_ONCE
        assert owed[-1] < AT_ONCE // 2 + 1 + 2 * AT_ONCE, "each has waited for one long poll, and not for all"

    play(scene())


def test_the_more_wait_the_fewer_requests_are_served_at_once() -> None:
    async def scene() -> None:
        turns = FairScheduler()
        assert turns.slice_requests == SLICE_REQUESTS
        turns.wait("a", lambda: None)
        assert turns.slice_requests == SLICE_REQUESTS // 2
        for number in range(100):
            turns.wait(number, lambda: None)
        assert turns.slice_requests == SLICE_REQUESTS_MIN

    play(scene())


def test_reads_wait_behind_no_slower_ones_and_answers_behind_no_reads() -> None:
    async def scene() -> None:
        seconds = count()
        turns, done = FairScheduler(lambda: next(seconds)), list[str]()
        for number in range(10):
            for name, speed in (("slow", SLOW), ("unknown", UNKNOWN), ("quick", QUICK)):
                turns.wait((name, number), partial(done.append, name), speed)
        turns.go_on("appended", lambda: done.append("answer"))
        assert done == ["answer"], "however many reads wait"
        await asyncio.sleep(0)
        assert done == ["answer", "quick", "unknown", "slow"]
        await none_left(turns)

    play(scene())


def test_a_connection_is_slow_by_the_processor_time_of_several_reads() -> None:
    async def scene() -> None:
        turns = FairScheduler()

        def read(processor_seconds: float) -> float:
            until = thread_time() + processor_seconds
            while thread_time() < until:
                pass
            return 10 * SLICE_SECONDS  # by the clock, as on a busy machine

        turns.served(read(0), QUICK)
        assert not turns.is_used_up
        assert turns.served(read(SLICE_SECONDS), QUICK) == UNKNOWN
        assert turns.is_used_up
        assert turns.served(read(SLICE_SECONDS), UNKNOWN) == SLOW
        assert turns.served(read(0), SLOW) == QUICK
        await asyncio.sleep(0)
        assert not turns.is_used_up, "another turn of the loop"

    play(scene())
