"""Who has not said who it is: what a session does with it, and that every one who came in is counted out again."""

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.server.toy import Scene, until

from braidlog.model.clock import SystemClock
from braidlog.security.authentication import NOT_PROVED, Authenticate, Pauses
from braidlog.security.authorization import ANONYMOUS, CONSOLE, Authorize
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.server.net.admission import certified_principal
from braidlog.server.net.connection_limits import ConnectionLimits
from braidlog.server.net.unauthenticated_limits import AccessGate, UnauthenticatedLimits
from braidlog.server.process import file_descriptors
from braidlog.storage.group_commit import Flusher

RIGHT = "AUTH alice right"
WRONG = "AUTH alice wrong"


def play(scene: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(scene)
    def run() -> None:
        async def with_deadline() -> None:
            async with asyncio.timeout(20):
                await scene()

        asyncio.run(with_deadline())

    del run.__wrapped__
    return run


def keeper(*, required: bool = True, pause: float = 0.01, **limits: float) -> AccessGate:
    tokens = {"alice": hashlib.sha256(b"right").hexdigest()} if required else {}
    runtime = EventLoopRuntime(SystemClock(), cast("Flusher", SimpleNamespace(appended=None)))  # nothing is synced here
    return AccessGate(
        Authenticate(Authorize(tokens, []), runtime, Pauses(pause, pause)),
        UnauthenticatedLimits(**limits),  # type: ignore[arg-type]
    )


@play
async def test_who_shows_a_token_is_known_before_its_first_request() -> None:
    doors = keeper()
    scene = Scene(gatekeeper=doors)
    assert len(doors.unauthenticated) == 1
    scene.send(RIGHT, "hello")
    assert scene.sent == ["ok hello"]
    assert scene.session.principal == "alice"
    assert len(doors.unauthenticated) == 0


@pytest.mark.parametrize("ordered", [True, False])
def test_who_shows_a_wrong_one_is_told_late_and_not_served(ordered: bool) -> None:
    @play
    async def scenery() -> None:
        doors = keeper()
        scene = Scene(ordered=ordered, gatekeeper=doors)
        scene.send(WRONG, "hello")
        assert scene.sent == []
        scene.send("more")
        await until(lambda: scene.transport.closed)
        assert scene.sent == [f"turned away: {NOT_PROVED}"]
        assert scene.adapter.begun == []
        assert scene.session.principal == ANONYMOUS
        await until(lambda: len(doors.unauthenticated) == 0)

    scenery()


@play
async def test_a_right_token_does_not_wait_behind_a_wrong_one() -> None:
    doors = keeper(pause=60)
    guesser = Scene(gatekeeper=doors)
    guesser.send(WRONG)
    scene = Scene(gatekeeper=doors)
    scene.send(RIGHT, "one", "two")
    assert scene.sent == ["ok one", "ok two"]
    assert scene.session.principal == "alice"
    guesser.transport.close()
    await until(lambda: len(doors.unauthenticated) == 0)


@play
async def test_who_leaves_while_it_waits_is_counted_out() -> None:
    doors = keeper(pause=60)
    scene = Scene(gatekeeper=doors)
    scene.send(WRONG)
    assert len(doors.unauthenticated) == 1
    scene.transport.close()
    await until(lambda: len(doors.unauthenticated) == 0)
    assert scene.sent == []


@play
async def test_a_stop_does_not_wait_for_who_waits_to_hear_that_it_was_wrong() -> None:
    scene = Scene(gatekeeper=keeper(pause=60))
    scene.send(WRONG)
    scene.session.drain()
    await until(lambda: scene.transport.closed)


@play
async def test_frames_are_small_until_one_is_known() -> None:
    doors = keeper(frame_bytes_max=100)
    scene = Scene(gatekeeper=doors)
    scene.send("x" * 101)
    await until(lambda: scene.transport.closed)
    assert scene.sent == ["turned away: a line is too long"]
    known = Scene(gatekeeper=doors)
    known.send(RIGHT, "x" * 101)
    assert known.sent == ["ok " + "x" * 101]


@play
async def test_time_runs_out() -> None:
    doors = keeper(first_frame_seconds_max=5, seconds_max=10)
    silent, asking, known, waiting = (Scene(gatekeeper=doors) for _ in range(4))
    now = asyncio.get_running_loop().time()
    silent.send()
    asking.send("hello")
    known.send(RIGHT)
    assert waiting.session._admission is not None
    waiting.session._admission.is_proving = True
    scenes = (silent, asking, known, waiting)
    told = "not authenticated in time"
    assert [scene.session.overdue(now + 4.9) for scene in scenes] == [None] * 4
    assert [scene.session.overdue(now + 5.2) for scene in scenes] == [told, None, None, None]
    assert [scene.session.overdue(now + 10.2) for scene in scenes] == [told, told, None, None]


@play
async def test_one_too_many_takes_a_guessers_place_then_that_of_the_oldest_who_is_silent() -> None:
    doors = keeper(per_address_max=3, pause=60)
    proving, silent, guesser = scenes = [Scene(gatekeeper=doors) for _ in range(3)]
    guesser.send(WRONG)
    assert proving.session._admission is not None
    proving.session._admission.is_proving = True  # a password that waits for its turn
    gone = []
    for _ in range(2):
        Scene(gatekeeper=doors)
        gone.append([scene.transport.aborted for scene in scenes])
    assert gone == [[False, False, True], [False, True, True]]
    await until(lambda: len(doors.unauthenticated) == 3)
    assert not silent.sent


@play
async def test_a_right_token_passes_while_all_places_are_those_of_guessers() -> None:
    doors = keeper(per_address_max=3, pause=60)
    guessers = [Scene(gatekeeper=doors) for _ in range(3)]
    for each in guessers:
        each.send(WRONG)
    for _ in range(5):
        known = Scene(gatekeeper=doors)
        known.send(RIGHT, "hello")
        assert known.sent == ["ok hello"]
    assert [each.transport.aborted for each in guessers] == [True, False, False]
    for each in guessers:
        each.transport.close()
    await until(lambda: len(doors.unauthenticated) == 0)


@play
async def test_strangers_never_cut_off_who_is_known() -> None:
    doors = keeper(connections_max=2)
    known = Scene(gatekeeper=doors)
    known.send(RIGHT)
    strangers = [Scene(gatekeeper=doors) for _ in range(10)]
    assert [each.transport.aborted for each in strangers] == [True] * 8 + [False] * 2
    known.send("still here")
    assert known.sent == ["ok still here"]
    await until(lambda: len(doors.unauthenticated) == 2)


@play
async def test_where_nobody_has_to_say_who_it_is_nobody_is_a_stranger() -> None:
    doors = keeper(required=False, per_address_max=1, frame_bytes_max=64)
    scenes = [Scene(gatekeeper=doors) for _ in range(3)]
    for scene in scenes:
        scene.send("x" * 200)
        assert scene.sent == ["ok " + "x" * 200]
        assert scene.session.overdue(asyncio.get_running_loop().time() + 60) is None


@play
async def test_a_line_that_is_no_introduction_after_all() -> None:
    scene = Scene(gatekeeper=keeper(required=False))
    for piece in (b"A", b"UT", b"OMATIC\n"):
        scene.session.data_received(piece)
    assert scene.sent == ["ok AUTOMATIC"]


@play
async def test_the_beginning_of_an_introduction_is_a_frame_that_has_to_end() -> None:
    scene = Scene(gatekeeper=keeper(required=False))
    scene.session.data_received(b"AUTH al")
    later = asyncio.get_running_loop().time() + 31
    assert scene.session.overdue(later) == "frame not completed within 30 s"


# -- counts --------------------------------------------------------------------------------------------------


def test_a_census_counts_in_all_and_by_address() -> None:
    connection_limits = ConnectionLimits(connections_max=3, per_address_max=2)
    assert [connection_limits.enter(peer, 0.0) for peer in ("a", "a", "a")] == [True, True, False]
    connection_limits.leave("a")
    assert [connection_limits.enter(peer, 0.0) for peer in ("b", "c")] == [True, False]
    for peer in ("a", "a", "b", "c"):
        connection_limits.leave(peer)
    assert len(connection_limits) == 0
    assert not connection_limits._peers


@pytest.mark.parametrize(("wanted", "limit", "fit"), [(100, 1024, 100), (768, 1024, 768), (769, 1024, 768), (9, 1, 1)])
def test_connections_leave_room_for_files(wanted: int, limit: int, fit: int) -> None:
    assert file_descriptors.connections_that_fit(wanted, limit) == fit


def test_complaints_are_few(caplog: pytest.LogCaptureFixture) -> None:
    handled: list[object] = []

    class Loop:
        now = 0.0

        def time(self) -> float:
            return self.now

        def default_exception_handler(self, context: object) -> None:
            handled.append(context)

    loop, complaints = Loop(), file_descriptors.Complaints()
    for loop.now in (0.0, 0.1, 9.0, 11.0):
        complaints(loop, {"exception": OSError(24, "Too many open files")})  # type: ignore[arg-type]
    assert [record.message for record in caplog.records] == ["clients have to wait: Too many open files"] * 2
    complaints(loop, {"exception": OSError(5, "Input/output error")})  # type: ignore[arg-type]
    complaints(loop, {"message": "something else"})  # type: ignore[arg-type]
    assert len(handled) == 2


@pytest.mark.parametrize(("is_connection", "is_ours", "is_told"), [(1, 0, 0), (0, 0, 1), (1, 1, 1)])
def test_a_connection_that_ends_under_uvloops_hands_is_no_complaint(
    is_connection: bool, is_ours: bool, is_told: bool
) -> None:
    told: list[object] = []
    loop: Any = SimpleNamespace(default_exception_handler=told.append)
    error = RuntimeError("unable to perform operation; the handler is closed")
    if is_ours:
        with pytest.raises(RuntimeError):
            raise error  # it has a frame of ours from now on
    transport = {"transport": object()} if is_connection else {}
    file_descriptors.Complaints()(loop, {"exception": error, **transport})
    assert len(told) == is_told


@pytest.mark.parametrize("reserved", [CONSOLE, "anonymous", "*"])
def test_a_certificate_gives_no_reserved_name(reserved: str, caplog: pytest.LogCaptureFixture) -> None:
    assert certified_principal({"subject": ((("commonName", "ada"),),)}, "a:1") == "ada"
    assert certified_principal({"subject": (), "subjectAltName": (("DNS", "eve"),)}, "a:1") == "eve"
    assert certified_principal(None, "a:1") == ANONYMOUS
    assert certified_principal({"subject": ((("commonName", reserved),),)}, "a:1") is None
    assert caplog.messages == [f"closing a:1: its certificate names {reserved!r}, a reserved principal"]
