"""Time that is computed: what happens when, and coroutines that wait on it."""

from tests.simulation.virtual_time import US_PER_SECOND, VirtualTime, VirtualWorld, stream


def test_what_is_due_happens_in_order() -> None:
    time, seen = VirtualTime(), list[str]()
    time.after(5, lambda: seen.append("later"))

    def first() -> None:
        seen.append("first")
        time.after(1, lambda: seen.append("second"))

    time.after(1, first)
    time.after(1, lambda: seen.append("first too"))
    time.run(3)
    assert (seen, time.now_us) == (["first", "first too", "second"], 3)
    time.run(10, done=lambda: len(seen) == 4)
    assert (seen[-1], time.now_us) == ("later", 5)


def test_a_coroutine_waits_and_is_woken() -> None:
    time = VirtualTime()
    runtime = VirtualWorld(time)
    outcomes: list[object] = []
    wakeup = runtime.wakeup()

    async def waits() -> None:
        outcomes.append(await runtime.wakeup().wait(1.5))
        outcomes.append(runtime.monotonic())
        outcomes.append(await wakeup.wait(100.0))
        outcomes.append(await runtime.blocking(lambda: "done"))

    runtime.spawn(waits())
    time.after(2 * US_PER_SECOND, wakeup.wake)
    time.run(3 * US_PER_SECOND)
    assert outcomes == [False, 1.5, True, "done"]


def test_a_job_that_is_cancelled_goes_no_further() -> None:
    time = VirtualTime()
    runtime = VirtualWorld(time)
    ended: list[str] = []

    async def waits() -> None:
        try:
            await runtime.wakeup().wait(1.0)
            ended.append("woken")
        finally:
            ended.append("closed")

    job = runtime.spawn(waits())
    time.run(10)
    job.cancel()
    time.run(2 * US_PER_SECOND)
    assert ended == ["closed"]


def test_clocks_of_nodes_run_at_their_own_rate() -> None:
    time = VirtualTime()
    fast = VirtualWorld(time, rate=1.1, ahead_ms=70)
    time.run(US_PER_SECOND)
    assert fast.monotonic_ms() == 1100
    assert fast.now_ms() - VirtualWorld(time).now_ms() == 170


def test_streams_by_name_do_not_move_each_other() -> None:
    one = stream(7, "a")
    one.random()
    assert stream(7, "b").random() == stream(7, "b").random() != stream(7, "a").random()
    assert f"{stream(7, 'a').random():.6f}" == "0.973308"
