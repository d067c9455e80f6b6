"""Work in slices: everything in order, and others have their turn in between."""

from tests.model.manual_world import ManualRuntime

from braidlog.model.runtime.cooperative import YieldCounter, in_slices
from braidlog.testing.clock import ManualClock


def test_others_have_their_turn_between_two_slices() -> None:
    runtime = ManualRuntime(ManualClock())
    told: dict[str, int] = {}

    async def walk(name: str) -> None:
        async for number in in_slices(range(4), size=2):
            told[f"{name}{number}"] = len(told)

    jobs = [runtime.spawn(walk(name)) for name in "ab"]
    runtime.settle()
    assert all(job.is_done for job in jobs)
    assert sorted(told) == sorted(f"{name}{number}" for name in "ab" for number in range(4))
    assert told["b0"] < told["a3"], "the second begins before the first is through"


def test_what_is_walked_may_change_meanwhile() -> None:
    runtime = ManualRuntime(ManualClock())
    there = dict.fromkeys(range(5))

    async def drop_all() -> None:
        async for number in in_slices(there, size=1):
            del there[number]

    runtime.run(drop_all())
    assert not there


def test_things_within_things_are_counted_together() -> None:
    runtime = ManualRuntime(ManualClock())
    told: list[str] = []

    async def walk(name: str) -> None:
        pace = YieldCounter(4)
        for _ in range(3):
            for _ in range(2):
                told.append(name)
                await pace.step()

    async def leap() -> None:
        await YieldCounter(4).step(100)
        told.append("leapt")

    runtime.spawn(walk("a"))
    runtime.spawn(walk("b"))
    runtime.spawn(leap())
    runtime.settle()
    assert told == [*"aaaabbbb", *"aabb", "leapt"]
