"""Background tasks: none outlives its owner, and no crash is lost."""

import asyncio
from typing import Any

from braidlog.model.actor import ACTOR, Actor, audited_as
from braidlog.tasks import Tasks


def test_a_crash_is_told_to_the_loop_and_to_the_owner() -> None:
    async def crash() -> None:
        raise LookupError("x")

    async def run() -> tuple[list[BaseException], list[dict[str, Any]]]:
        to_owner: list[BaseException] = []
        to_loop: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: to_loop.append(context))
        tasks = Tasks(to_owner.append)
        ended = tasks.spawn(crash(), "crash", lambda error: to_owner.append(KeyError(f"before {error}")))
        await asyncio.wait([ended])
        await tasks.stop()
        return to_owner, to_loop

    to_owner, to_loop = asyncio.run(run())
    assert [error.args for error in to_owner] == [("before x",), ("x",)], "who waits for it hears first"
    assert "task crash crashed" in to_loop[0]["message"]


def test_what_is_stopped_has_ended_and_is_no_crash() -> None:
    async def run() -> tuple[int, bool]:
        failures: list[BaseException] = []
        turns = 0
        three = asyncio.Event()
        tasks = Tasks(failures.append)

        async def turn() -> None:
            nonlocal turns
            turns += 1
            if turns == 3:
                three.set()

        tasks.every(0, turn, "turn")
        waiting = tasks.spawn(asyncio.Event().wait(), "wait")
        await three.wait()
        await tasks.stop()
        assert not failures
        return turns, waiting.cancelled()

    assert asyncio.run(run()) == (3, True)


def test_what_a_task_does_is_not_told_as_the_wish_of_who_was_served_when_it_began() -> None:
    async def actor() -> Actor | None:
        return ACTOR.get()

    async def run() -> tuple[Actor | None, bool]:
        tasks = Tasks()
        ann = Actor("ann", "here", "kafka")
        with audited_as(ann, "CreateTopics", is_told=True):
            began = tasks.spawn(actor(), "background")
            is_ann = ACTOR.get() is ann
        return await began, is_ann

    assert asyncio.run(run()) == (None, True)
