"""One connection: order, limits, back-pressure, and mistakes that stay its own."""

import asyncio
import functools
import gc
import re
import weakref
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest
from tests.server.toy import Scene, until

from braidlog.cluster.metadata.events import QuotaEntity
from braidlog.security.quotas import Quotas, Rates
from braidlog.server.net import client_quota
from braidlog.server.net.connection_activity import CLOSING_SECONDS_MAX
from braidlog.server.net.connection_limits import SessionLimits
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.pending_requests import FEW_WAITING, WAITING_BYTES
from braidlog.server.net.scheduler import AT_ONCE, FairScheduler


def play(scene: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(scene)
    def run() -> None:
        async def with_deadline() -> None:
            async with asyncio.timeout(20):
                await scene()

        asyncio.run(with_deadline())

    del run.__wrapped__
    return run


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@play
async def test_a_session_has_what_it_declares_and_nothing_else() -> None:
    """Objects share the keys of thirty attributes at most; with more of them every request would pay for each that it reads."""
    assert not hasattr(Scene().session, "__dict__")


# -- order ---------------------------------------------------------------------------------------------------


@play
async def test_answers_leave_in_the_order_of_their_requests() -> None:
    scene = Scene()
    scene.send("wait 1", "two", "wait 3", "four")
    assert scene.sent == []
    scene.adapter.release("3")
    await turns()
    assert scene.sent == []
    scene.adapter.release("1")
    await turns()
    assert scene.sent == ["ok 1", "ok two", "ok 3", "ok four"]


@play
async def test_answers_of_an_unordered_dialect_leave_when_they_are_ready() -> None:
    scene = Scene(ordered=False)
    scene.send("wait 1", "two", "wait 3")
    assert scene.sent == ["ok two"]
    scene.adapter.release("3")
    await turns()
    scene.adapter.release("1")
    await turns()
    assert scene.sent == ["ok two", "ok 3", "ok 1"]


@play
async def test_all_answers_of_one_read_leave_in_one_write() -> None:
    scene = Scene()
    scene.send(*[f"r{number}" for number in range(50)])
    assert len(scene.transport.writes) == 1
    assert scene.sent == [f"ok r{number}" for number in range(50)]


@pytest.mark.parametrize("ordered", [True, False])
def test_answers_that_become_ready_together_leave_together(ordered: bool) -> None:
    @play
    async def scene_of() -> None:
        scene = Scene(ordered=ordered)
        scene.send(*[f"wait {number}" for number in range(20)])
        for number in range(20):
            scene.adapter.release(str(number))
        await turns()
        assert len(scene.transport.writes) == 1, "one sync answers many; they need one write"
        assert sorted(scene.sent) == sorted(f"ok {number}" for number in range(20))

    scene_of()


@pytest.mark.parametrize("ordered", [True, False])
def test_plain_answers_keep_their_place_among_those_that_take_steps(ordered: bool) -> None:
    @play
    async def run() -> None:
        scene = Scene(ordered=ordered)
        scene.send("one", "soon two", "three", "fail four", "five", "!six", "seven", "push eight", "nine")
        await turns()
        told = [
            "ok one",
            "ok two",
            "ok three",
            "error four",
            "ok five",
            "refused six",
            "ok seven",
            "pushed eight",
            "ok nine",
        ]
        assert scene.sent == told if ordered else sorted(scene.sent) == sorted(told)
        assert scene.sent.index("pushed eight") > 6, "what is pushed goes by no earlier answer"
        assert scene.session.held_bytes() == 0

    run()


@play
async def test_room_is_looked_at_again_when_many_bytes_are_ready() -> None:
    """However small each answer is: what one read brings is not all served to a client that takes nothing."""
    scene = Scene(SessionLimits(output_bytes_max=64 * 1024))
    scene.transport.stuck, scene.transport.high = True, 0
    scene.send(*["large 9000"] * 60)
    assert len(scene.adapter.begun) < 30
    assert not scene.transport.reading
    scene.transport.drain()
    await until(lambda: len(scene.adapter.ended) == 60)
    assert len(scene.sent) == 60


@play
async def test_the_answer_to_who_waited_alone_leaves_in_the_turn_in_which_its_wait_ends() -> None:
    scene = Scene()
    scene.send("wait 1")
    scene.adapter.release("1")
    await turns(1)
    assert scene.sent == ["ok 1"]
    scene.send("wait 2", "three", "wait 4")
    scene.adapter.release("4")
    scene.adapter.release("2")
    await turns()
    assert scene.transport.writes[1:] == [b"ok 2\nok three\nok 4\n"], "and those that wait together leave together"


@play
async def test_requests_cut_anywhere_are_the_same_requests() -> None:
    scene = Scene()
    for byte in b"one\ntwo\n":
        scene.session.data_received(bytes([byte]))
    assert scene.sent == ["ok one", "ok two"]
    assert scene.session.requests == 2


@play
async def test_no_answer_is_no_answer() -> None:
    scene = Scene()
    scene.send("silent", "one", "silent")
    assert scene.sent == ["ok one"]


@play
async def test_errors_of_the_services_are_answered_in_order() -> None:
    scene = Scene()
    scene.send("wait 1", "fail no such thing", "two")
    scene.adapter.release("1")
    await turns()
    assert scene.sent == ["ok 1", "error no such thing", "ok two"]


@play
async def test_a_pushed_frame_does_not_overtake_answers_that_are_ready() -> None:
    scene = Scene()
    scene.send("one", "push x", "two")
    await turns()
    assert scene.sent == ["ok one", "pushed x", "ok two"]


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_a_refusal_is_answered_in_its_place_and_the_connection_stays(ordered: bool) -> None:
    @play
    async def scene_of() -> None:
        scene = Scene(ordered=ordered)
        scene.send("one", "!what", "two")
        assert sorted(scene.sent) == ["ok one", "ok two", "refused what"]
        if ordered:
            assert scene.sent == ["ok one", "refused what", "ok two"]
        assert not scene.transport.closed

    scene_of()


@play
async def test_after_a_final_refusal_what_was_asked_before_is_answered_and_nothing_after() -> None:
    scene = Scene()
    scene.send("wait 1", "!!end", "three")
    await turns()
    assert not scene.transport.closed
    assert not scene.transport.reading
    scene.send("four")
    scene.adapter.release("1")
    await turns()
    assert scene.sent == ["ok 1", "refused end"]
    assert scene.transport.closed
    assert not scene.transport.aborted
    assert scene.adapter.begun == ["wait 1"]
    assert scene.account.open == []


# -- our own mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_line", ["crash", "unspeakable", "no route", "explode"])
def test_a_mistake_of_ours_ends_this_connection_only(request_line: str, caplog: pytest.LogCaptureFixture) -> None:
    @play
    async def scene_of() -> None:
        other = Scene()
        scene = Scene()
        scene.send("one", request_line, "two")
        await turns()
        assert scene.transport.aborted
        assert scene.account.open == []
        other.send("still here")
        assert other.sent == ["ok still here"]

    scene_of()
    assert any(record.levelname == "ERROR" and record.exc_info for record in caplog.records)


@play
async def test_a_mistake_in_a_later_answer_ends_the_connection_too() -> None:
    scene = Scene()
    scene.send("wait 1", "two")
    scene.adapter.release("1", "unspeakable")
    await turns()
    assert scene.transport.aborted, "or the client would wait for ever behind the answer that never comes"


@play
async def test_a_mistake_while_receiving() -> None:
    scene = Scene()
    scene.session.data_received(b"break")
    await turns()
    assert scene.transport.aborted


# -- limits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_at_most_so_many_requests_are_under_way(ordered: bool) -> None:
    @play
    async def scene_of() -> None:
        scene = Scene(SessionLimits(in_flight_max=3), ordered=ordered)
        scene.send(*[f"wait {number}" for number in range(5)])
        assert scene.adapter.begun == ["wait 0", "wait 1", "wait 2"]
        assert not scene.transport.reading
        scene.adapter.release("0")
        await turns()
        assert len(scene.adapter.begun) == 4
        assert not scene.transport.reading
        for name in ("1", "2", "3"):
            scene.adapter.release(name)
            await turns()
        assert len(scene.adapter.begun) == 5
        assert scene.transport.reading
        scene.adapter.release("4")
        await turns()
        assert len(scene.sent) == 5

    scene_of()


@pytest.mark.parametrize("verb", ["r", "silent"])
@pytest.mark.parametrize("ordered", [True, False])
def test_more_requests_than_the_limit_in_one_read_are_all_served(ordered: bool, verb: str) -> None:
    """The client waits for its answers and sends nothing more: what is left must not wait for it."""

    @play
    async def scene_of() -> None:
        scene = Scene(SessionLimits(in_flight_max=4), ordered=ordered)
        scene.send(*[f"{verb} {number}" for number in range(50)], "last")
        assert len(scene.adapter.begun) == 51
        assert scene.sent[-1] == "ok last"
        assert scene.transport.reading

    scene_of()


@play
async def test_a_client_that_takes_nothing_is_asked_nothing_more_and_then_cut_off() -> None:
    limits = SessionLimits(output_bytes_max=1000, output_seconds_max=5.0)
    scene = Scene(limits)
    scene.transport.stuck = True
    scene.send(*["large 400"] * 20)
    await turns()
    assert len(scene.adapter.begun) < 10, "no more than fits is even begun"
    assert not scene.transport.reading
    now = asyncio.get_running_loop().time()
    assert scene.session.overdue(now + 4) is None
    assert scene.session.overdue(now + 6) == "answers not read within 5 s"


@play
async def test_a_slow_client_that_takes_its_answers_in_time_gets_them_all() -> None:
    limits = SessionLimits(output_bytes_max=1000)
    scene = Scene(limits)
    scene.transport.stuck = True
    scene.send(*["large 400"] * 20)
    while len(scene.sent) < 20:
        scene.transport.drain()
        scene.transport.stuck = len(scene.sent) < 15
        await turns()
    assert scene.transport.reading
    assert scene.session.overdue(asyncio.get_running_loop().time() + 100) is None


@play
async def test_small_limits_do_not_wedge_a_client_that_reads() -> None:
    """The transport says when it is full only above its own mark: that mark must not be above our limit."""
    scene = Scene(SessionLimits(output_bytes_max=100))
    scene.transport.stuck = True
    scene.send("large 300")
    scene.transport.drain()
    scene.send("one")
    await turns()
    assert scene.sent[-1] == "ok one"


@play
async def test_pipelined_large_answers_do_not_pile_up() -> None:
    """A read of small requests for large answers: the answers leave as they come, not all at the end."""
    scene = Scene(SessionLimits(output_bytes_max=1 << 20))
    scene.transport.stuck = True
    scene.send(*["large 200000"] * 200)
    assert len(scene.adapter.begun) < 20
    assert scene.transport.buffered < 4 << 20


@play
async def test_answers_behind_a_slow_one_do_not_pile_up() -> None:
    scene = Scene(SessionLimits(output_bytes_max=1 << 20))
    scene.send("wait 1", *["large 200000"] * 200)
    assert len(scene.adapter.begun) < 20
    assert not scene.transport.reading
    scene.adapter.release("1")
    await turns(50)
    assert len(scene.sent) == 201


@play
async def test_many_polls_answered_at_once_to_a_client_that_takes_nothing() -> None:
    scene = Scene(SessionLimits(output_bytes_max=1000))
    scene.send(*[f"poll {number}" for number in range(50)])
    scene.transport.stuck = True
    for number in range(50):
        scene.adapter.release(str(number), "x" * 500)
        await turns()
    assert scene.transport.aborted
    assert scene.transport.buffered < 6000


# -- time ----------------------------------------------------------------------------------------------------


@play
async def test_a_frame_that_trickles_is_cut_off() -> None:
    limits = SessionLimits(frame_seconds_max=10.0)
    scene = Scene(limits)
    began = asyncio.get_running_loop().time()
    scene.session.data_received(b"a")
    assert scene.session.overdue(began + 9) is None
    for _ in range(50):
        scene.session.data_received(b"a" * 1_000)
    assert scene.session.overdue(began + 10.2) is None, "what came buys its time at the slowest rate"
    assert scene.session.overdue(began + 12) == "frame not completed within 10.5 s"
    scene.session.data_received(b"\n")
    assert scene.session.overdue(began + 12) is None
    scene.session.data_received(b"next")
    assert scene.session.overdue(began + 9) is None


@play
async def test_what_we_do_not_read_is_not_the_clients_fault() -> None:
    limits = SessionLimits(frame_seconds_max=10.0, output_bytes_max=1000, output_seconds_max=1000.0)
    scene = Scene(limits)
    scene.transport.stuck = True
    scene.session.data_received(b"large 3000\nhalf")
    assert not scene.transport.reading
    now = asyncio.get_running_loop().time()
    assert scene.session.overdue(now + 500) is None
    scene.transport.drain()
    assert scene.session.overdue(asyncio.get_running_loop().time() + 9) is None
    assert scene.session.overdue(asyncio.get_running_loop().time() + 11) is not None


@play
async def test_silence_is_cut_off_but_waiting_for_us_is_not() -> None:
    scene = Scene(SessionLimits(idle_seconds_max=100.0))
    now = asyncio.get_running_loop().time()
    assert scene.session.overdue(now + 99) is None
    assert scene.session.overdue(now + 101) == "idle for 100 s"
    scene.send("wait 1")
    assert scene.session.overdue(now + 10_000) is None


# -- the end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_when_the_client_goes_polls_end_and_changes_go_on(ordered: bool) -> None:
    @play
    async def scene_of() -> None:
        scene = Scene(ordered=ordered)
        scene.send("poll 1", "wait 2")
        scene.session.connection_lost(None)
        assert scene.adapter.ended == ["poll 1"]
        scene.adapter.release("2")
        await turns()
        assert scene.adapter.ended == ["poll 1", "wait 2"]
        assert scene.sent == []
        assert scene.account.open == []

    scene_of()


@play
async def test_closing_answers_what_was_asked() -> None:
    scene = Scene()
    scene.send("wait 1")
    scene.session.close()
    await turns()
    assert not scene.transport.closed
    scene.adapter.release("1")
    await turns()
    assert scene.sent == ["ok 1"]
    assert scene.transport.closed


@pytest.mark.parametrize("ordered", [True, False])
def test_the_clients_end_answers_long_polls_with_what_there_is(ordered: bool) -> None:
    """It may have closed one half only; if it is gone, its place is free now and not when the poll has run out."""

    @play
    async def scene_of() -> None:
        scene = Scene(ordered=ordered)
        scene.send("long 1", "two", "long 3")
        assert scene.session.eof_received()
        await until(lambda: scene.transport.closed)
        assert sorted(scene.sent) == ["nothing", "nothing", "ok two"]
        assert sorted(scene.adapter.ended) == ["long 1", "long 3", "two"]

    scene_of()


@play
async def test_a_refusal_that_ends_the_connection_does_not_wait_for_a_long_poll_before_it() -> None:
    scene = Scene()
    scene.send("long 1", "!!two")
    await until(lambda: scene.transport.closed)
    assert scene.sent == ["nothing", "refused two"]


@play
async def test_the_clients_end_ends_what_waits_for_other_clients() -> None:
    scene = Scene()
    scene.send("one", "park 2", "three")
    assert scene.session.eof_received()
    await until(lambda: scene.transport.closed)
    assert scene.adapter.ended == ["one", "three", "park 2"]
    assert scene.sent == ["ok one"], "a client takes an answer for that of its first request without one"


@pytest.mark.parametrize("verb", ["poll", "owe"])
def test_after_the_clients_end_what_may_be_ended_is_waited_for_only_a_while(verb: str) -> None:
    @play
    async def scene_of() -> None:
        scene = Scene()
        scene.send(f"{verb} 1")
        scene.session.eof_received()
        now = asyncio.get_running_loop().time()
        assert scene.session.overdue(now + CLOSING_SECONDS_MAX - 1) is None
        assert (
            scene.session.overdue(now + CLOSING_SECONDS_MAX + 1)
            == "closing, and not all requests are answered within 10 s"
        )

    scene_of()


@play
async def test_after_the_clients_end_a_change_is_waited_for() -> None:
    scene = Scene()
    scene.send("wait 1")
    scene.session.eof_received()
    assert scene.session.overdue(asyncio.get_running_loop().time() + 2 * CLOSING_SECONDS_MAX) is None
    scene.adapter.release("1")
    await until(lambda: scene.transport.closed)
    assert scene.sent == ["ok 1"]


@pytest.mark.parametrize(("verb", "gives_way"), [("long", True), ("poll", True), ("owe", False), ("wait", False)])
def test_a_connection_that_only_waits_is_idle(verb: str, gives_way: bool) -> None:
    @play
    async def scene_of() -> None:
        scene = Scene()
        scene.send(f"{verb} 1")
        assert scene.session.silent_since == (scene.session.activity.last_heard if gives_way else None)
        scene.session.eof_received()
        assert scene.session.silent_since == (0.0 if gives_way else None), "whose client has closed goes first"
        scene.session.connection_lost(None)
        assert scene.session.silent_since is None

    scene_of()


@play
async def test_a_stream_that_sends_is_not_idle() -> None:
    scene = Scene()
    scene.send("push 1", "poll 2")
    await turns()
    now = scene.session.activity.last_heard
    scene.session.overdue(now + 100)
    assert scene.session.silent_since == now + 100
    scene.session.overdue(now + 200)
    assert scene.session.silent_since == now + 100


@play
async def test_requests_that_wait_are_counted_and_while_memory_is_short_few_of_a_connection_are_begun() -> None:
    budget = Budget(100 * WAITING_BYTES)
    scenes = [Scene(budget=budget) for _ in range(20)]
    for scene in scenes:
        scene.send(*[f"poll {number}" for number in range(10)])
    assert [len(scene.session._pending.under_way) for scene in scenes] == [10] * 9 + [FEW_WAITING] * 11
    assert (budget.bytes_held, budget.let_go) == (90 * WAITING_BYTES, 0)
    for scene in scenes:
        for number in range(10):
            while str(number) not in scene.adapter.waiting:
                await turns(1)
            scene.adapter.release(str(number))
        while len(scene.sent) < 10:
            await turns(1)
    assert budget.bytes_held == 0


@play
async def test_what_took_long_to_read_is_served_in_a_turn_of_its_own_and_nothing_passes_it() -> None:
    now = 0.0
    scene = Scene(fair_turns=FairScheduler(lambda: now))
    read = scene.session.connection.next_event

    def read_slowly() -> Any:
        nonlocal now
        now += 1.0
        return read()

    scene.session.connection.next_event = read_slowly
    scene.session.data_received(b"on")
    await turns(1)  # what the loop brings behind it in the same turn waits
    scene.session.data_received(b"e\ntwo\n")
    assert scene.adapter.begun == []
    assert not scene.transport.reading, "an end of the connection is not heard before it is served"
    assert not scene.session.is_quiet
    await turns(1)
    assert scene.sent == ["ok one", "ok two"]
    await turns()
    assert scene.transport.reading


@play
async def test_a_refusal_that_took_long_to_read_is_answered() -> None:
    now = 0.0
    scene = Scene(fair_turns=FairScheduler(lambda: now))
    read = scene.session.connection.next_event

    def read_slowly() -> Any:
        nonlocal now
        now += 1.0
        return read()

    scene.session.connection.next_event = read_slowly
    scene.session.data_received(b"!on")
    scene.session.data_received(b"e\ntwo\n")
    await turns()
    assert scene.sent == ["refused one", "ok two"]


@play
async def test_who_is_alone_is_passed_by_no_later_request() -> None:
    scene = Scene()
    scene.send("wait 1")
    with scene.session.alone():
        scene.send("two")
        await turns()
        assert (scene.adapter.begun, scene.transport.reading) == (["wait 1"], False)
    await turns()
    assert (scene.adapter.begun, scene.transport.reading) == (["wait 1", "two"], True)


@play
async def test_what_is_pushed_to_a_client_that_takes_nothing_is_counted_while_it_waits() -> None:
    scene = Scene()
    scene.send("one")
    scene.session.pause_writing()
    pushing = asyncio.ensure_future(scene.session.push(bytes(50_000)))
    await turns()
    assert scene.session.held_bytes() == scene.session._budget.bytes_held == 50_000
    scene.session.resume_writing()
    await pushing
    assert scene.session.held_bytes() == scene.session._budget.bytes_held == 0


@play
async def test_a_push_to_a_client_that_is_gone_ends() -> None:
    scene = Scene(SessionLimits(output_bytes_max=100))
    scene.transport.stuck = True
    scene.send("large 300")
    pushing = asyncio.ensure_future(scene.session.push(b"x"))
    await turns()
    assert not pushing.done()
    scene.session.connection_lost(None)
    await pushing


@play
async def test_who_it_is() -> None:
    scene = Scene()
    assert (scene.session.principal, scene.session.peer) == ("anonymous", "10.0.0.1:4242")
    assert scene.session.address == ("toy.example", 1)


# -- quotas --------------------------------------------------------------------------------------------------


@play
async def test_who_sends_too_much_is_not_read_from_for_a_while() -> None:
    scene = Scene(quotas=Quotas(Rates(append_bytes_per_second=10_000)))
    scene.send("x" * 9_000)
    assert scene.transport.reading
    scene.send("y" * 1_200, "z")
    assert not scene.transport.reading
    assert re.search(r"y after \d+ ms$", scene.sent[1]), "what goes over is served, and told"
    assert len(scene.sent) == 2, "what comes next waits"
    await until(lambda: scene.transport.reading)
    assert scene.sent[2:] == ["ok z"]
    assert not scene.transport.closed


@play
async def test_a_request_that_goes_over_is_read_to_its_end() -> None:
    """Else a client with a low rate could never send a large one: it would not wait so long."""
    scene = Scene(quotas=Quotas(Rates(append_bytes_per_second=1_000)))
    for _ in range(20):
        scene.session.data_received(b"x" * 1_000)
        assert scene.transport.reading
        assert scene.sent == []
    scene.session.data_received(b"\n" + b"y" * 1_000)
    assert re.search(r"x after \d+ ms$", scene.sent[0])
    assert scene.session._quota.throttled_ms > 10_000
    assert not scene.transport.reading, "the next one has begun, and waits"


@play
async def test_a_quota_set_at_run_time_holds_for_connections_that_are_open() -> None:
    quotas = Quotas()
    scene = Scene(quotas=quotas)
    scene.send("x" * 50_000)
    assert scene.transport.reading
    quotas.administer({QuotaEntity("anonymous"): {"append_bytes_per_second": 10_000.0}})
    scene.send("y" * 10_100)
    assert not scene.transport.reading
    quotas.administer({QuotaEntity("anonymous"): {"request_percent": 10.0}})
    await until(lambda: scene.transport.reading)
    with pytest.MonkeyPatch.context() as patch:
        halves = iter(range(1000))
        patch.setattr(client_quota, "thread_time", lambda: next(halves) / 2)
        scene.send("z")
    assert not scene.transport.reading


@play
async def test_who_fetches_too_much_waits_with_the_next() -> None:
    scene = Scene(quotas=Quotas(principals={"bulk": Rates(fetch_bytes_per_second=10_000)}))
    scene.send("large 50000")
    assert scene.transport.reading, "others have no limit"
    scene.session.principal = "bulk"
    scene.send("large 10500", "two")
    assert re.search(r"x after \d+ ms$", scene.sent[-1]), "its own answer says so"
    assert not scene.transport.reading
    scene.session.principal = (
        "other"  # whose answer costs nothing: whether bulk's would be a millisecond too early is chance
    )
    await until(lambda: scene.transport.reading)
    assert scene.sent[-1] == "ok two"


@play
async def test_what_is_pushed_counts_as_well() -> None:
    scene = Scene(quotas=Quotas(Rates(fetch_bytes_per_second=1_000)))
    scene.send("push " + "x" * 1_100)
    await until(lambda: not scene.transport.reading)
    assert scene.session._quota.throttled_ms > 0


@play
async def test_a_client_id_has_its_own() -> None:
    quotas = Quotas()
    scene = Scene(quotas=quotas)
    quotas.administer({QuotaEntity(client_id="app"): {"append_bytes_per_second": 10.0}})
    scene.send("x" * 5_000)
    assert scene.transport.reading
    scene.session.client_id = "app"
    scene.send("x" * 15)
    assert not scene.transport.reading


@play
async def test_who_takes_too_much_of_the_loops_time_waits_and_is_told() -> None:
    """Each piece of work takes a tenth of a second, by the clock that the session is given."""
    scene = Scene(quotas=Quotas(Rates(request_percent=10)))
    with pytest.MonkeyPatch.context() as patch:
        tenths = iter(range(1000))
        patch.setattr(client_quota, "thread_time", lambda: next(tenths) / 10)
        scene.send("wait 1")
        assert scene.transport.reading, "a burst is a second's worth"
        scene.send("wait 2")
        assert not scene.transport.reading
        scene.adapter.release("1")
        await turns()
    told = scene.sent[0].split()
    assert told[:3] == ["ok", "1", "after"]
    assert 500 < int(told[3]) <= 3000
    assert scene.session._counters.throttles >= 1


@play
async def test_an_address_has_a_share_of_its_own() -> None:
    quotas = Quotas(address_request_percent=10)
    scenes = [Scene(quotas=quotas), Scene(quotas=quotas)]
    with pytest.MonkeyPatch.context() as patch:
        tenths = iter(range(1000))
        patch.setattr(client_quota, "thread_time", lambda: next(tenths) / 10)
        for scene in scenes:
            scene.send("hello")
    assert [scene.transport.reading for scene in scenes] == [True, False], "the second pays for both"


@play
async def test_without_shares_nobody_looks_at_the_clock() -> None:
    scene = Scene(quotas=Quotas(Rates(append_bytes_per_second=10_000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_quota, "thread_time", None)
        scene.send("hello")
    assert scene.sent == ["ok hello"]


@play
async def test_a_flood_waits_for_its_turn_and_others_do_not() -> None:
    """However dear each request is: a piece of work that took its time is followed by the others."""
    seconds = count()
    fair = FairScheduler(lambda: next(seconds))
    flood, other = Scene(fair_turns=fair), Scene(fair_turns=fair)
    flood.send(*["dear"] * 100)
    assert 1 <= len(flood.sent) < 3
    assert not flood.transport.reading
    other.send("hello")
    assert other.sent == ["ok hello"]
    await until(lambda: len(flood.sent) == 100)
    await until(lambda: flood.transport.reading)  # in the turn after the last of them


@play
async def test_many_waits_that_end_together_go_on_in_turns_and_others_between_them() -> None:
    """One record may end a thousand long polls: of these some go on at once, the others one after the other with the loop's
    sockets in between, and who waits for one answer has it before all of the others have theirs."""
    seconds = count()
    fair = FairScheduler(lambda: next(seconds))  # whatever is done takes longer than a slice
    many = 3 * AT_ONCE
    crowd, other = Scene(fair_turns=fair), Scene(fair_turns=fair)
    for number in range(many):
        crowd.send(f"poll {number}")
    other.send("poll x")
    await until(lambda: len(crowd.adapter.begun) == many and not fair.crowd)
    for number in range(many):
        crowd.adapter.release(str(number))
    other.adapter.release("x")
    await turns(1)
    ended = [len(crowd.adapter.ended)]
    assert ended == [AT_ONCE]
    while not other.adapter.ended:
        await turns(1)
        ended.append(len(crowd.adapter.ended))
    assert ended[-1] <= AT_ONCE + 3, "it waited for one or two of them"
    await until(lambda: len(crowd.sent) == many)
    assert crowd.sent == [f"ok {number}" for number in range(many)]


@play
async def test_no_timer_is_left_behind() -> None:
    scene = Scene(quotas=Quotas(Rates(append_bytes_per_second=1)))
    scene.send("too much")
    timer: Any = scene.session._quota.timer
    assert timer is not None
    scene.session.connection_lost(None)
    assert timer.cancelled()


# -- what stays behind ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", ["hello", "!no", "!!no", "fail x", "poll 1", "push 3", "hello\npoll 1\npoll 2\nfail x"]
)
def test_nothing_of_a_connection_outlives_it(said: str) -> None:
    """Not even until the collector comes: its buffers may be large, and there may be many."""

    async def scene() -> None:
        visit = Scene()
        ghost = weakref.ref(visit.session)
        visit.send(*said.split("\n"))
        await turns()
        if visit.session.outbox.transport is not None:
            visit.session.connection_lost(None)
        visit.transport.protocol = None
        del visit
        await turns()
        assert ghost() is None

    gc.disable()
    try:
        asyncio.run(scene())
    finally:
        gc.enable()


@play
async def test_a_stop_answers_what_was_changed_and_lets_go_of_who_only_waits() -> None:
    scene = Scene(ordered=False)
    scene.send("owe a", "poll b")
    scene.session.drain()
    assert scene.adapter.ended == ["poll b"]
    assert not scene.transport.closed
    scene.adapter.release("a")
    await until(lambda: scene.transport.ended)
    assert (scene.transport.reading, scene.transport.closed) == (True, False), (
        "what it still sends is not read back to it"
    )
    scene.send("c")
    assert not scene.session.eof_received(), "it has read everything"
    await until(lambda: scene.transport.closed)
    assert scene.sent == ["ok a"]


@play
async def test_a_stop_answers_what_was_changed_behind_a_long_poll() -> None:
    """Its client would not know whether it was, and send it again."""
    scene = Scene()
    scene.send("long a", "owe b", "c", "long d")
    scene.session.drain()
    assert scene.adapter.ended == ["c", "long d"]
    scene.adapter.release("b")
    await until(lambda: scene.transport.ended)
    assert scene.sent == ["nothing", "ok b", "ok c"]


@play
async def test_a_stop_does_not_wait_for_a_client_that_says_nothing() -> None:
    scene = Scene()
    scene.send("a")
    scene.session.activity.last_heard -= 60
    scene.session.drain()
    await turns()
    assert (scene.transport.closed, scene.transport.ended) == (True, False)


@play
async def test_what_was_changed_for_a_client_that_is_gone_is_told_to_nobody() -> None:
    scene = Scene()
    scene.send("owe a")
    scene.transport.close()
    await until(lambda: scene.adapter.ended == ["owe a"])
