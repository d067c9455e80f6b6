"""Connections in line: one piece of work of each, and the loop's sockets in between."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from itertools import count
from time import thread_time
from typing import Any

from braidlog.server.fair_turns import (
    AT_ONCE,
    QUICK,
    SLICE_REQUESTS,
    SLICE_REQUESTS_MIN,
    SLICE_SECONDS,
    SLOW,
    UNKNOWN,
    FairTurns,
)


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def with_deadline() -> None:
        async with asyncio.timeout(60):
            await scene

    asyncio.run(with_deadline())


async def none_left(turns: FairTurns) -> None:
    while turns.crowd:  # noqa: ASYNC110 - turns of the loop are what is waited for
        await asyncio.sleep(0)


def test_one_piece_of_each_after_the_other_and_each_in_its_order() -> None:
    async def scene() -> None:
        turns, done = FairTurns(), list[str]()
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
        turns, done = FairTurns(lambda: next(seconds)), list[int]()
        for number in range(100):
            turns.wait(number, partial(done.append, number))
        for served in range(1, 4):
            await asyncio.sleep(0)
            assert len(done) == served

    play(scene())


def test_a_few_waits_that_end_together_go_on_at_once_and_many_in_their_turns() -> None:
    async def scene() -> None:
        turns, done = FairTurns(), list[int]()
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
        turns, done = FairTurns(), list[int]()
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
        turns = FairTurns()
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
        turns, done = FairTurns(lambda: next(seconds)), list[str]()
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
        turns = FairTurns()

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
