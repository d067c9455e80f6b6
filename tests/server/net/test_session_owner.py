"""What sessions count for their listener, on the toy dialect; and one that is watched."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.server.toy import Scene

from braidlog.model.reporting.node_report import WATCHED_BYTES_MAX, WatchedPiece
from braidlog.security.quotas import Quotas, Rates
from braidlog.server.net.connection_tap import ConnectionTap
from braidlog.server.net.session_owner import SAMPLED


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def with_deadline() -> None:
        async with asyncio.timeout(20):
            await scene

    asyncio.run(with_deadline())


def test_requests_by_operation_and_bytes() -> None:
    async def scene() -> None:
        talk = Scene()
        talk.send("one", "one", "two x", "crumb")
        counters = talk.account.counters
        assert counters.requests == {"one": 2, "two": 1, "crumb": 1}
        assert talk.session.bytes_in == len("one\none\ntwo x\ncrumb\n")
        assert talk.session.outbox.bytes_out == len("ok one\nok one\nok two x\nok crumb\n")

    play(scene())


def test_of_one_request_in_sixteen_the_time_is_taken_whether_it_waits_or_not() -> None:
    async def scene() -> None:
        talk = Scene()
        talk.send(*["quick"] * (SAMPLED - 1), "wait x", *["quick"] * SAMPLED)
        counters = talk.account.counters
        assert sum(counters.seconds["quick"].counts) == 1
        assert "wait" not in counters.seconds
        await asyncio.sleep(0.01)
        talk.adapter.release("x")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sum(counters.seconds["wait"].counts) == 1
        assert counters.seconds["wait"].total >= 0.009

    play(scene())


def test_who_is_slowed_down_is_counted() -> None:
    async def scene() -> None:
        talk = Scene(quotas=Quotas(Rates(append_bytes_per_second=10)))
        talk.send("x" * 100)
        assert talk.account.counters.throttles == 1
        assert 5 < talk.account.counters.throttled_seconds < 15

    play(scene())


# -- watching ------------------------------------------------------------------------------------------------------


class Watching:
    """A scene that somebody watches."""

    def __init__(self, *, room: bool = True) -> None:
        self.talk = Scene()
        self.heard: list[WatchedPiece] = []
        self.room = room
        self.watch = ConnectionTap(self.talk.session, self._report, lambda: 7)
        self.protocol: Any = self.talk.session
        self.talk.transport.set_protocol = self._set_protocol  # type: ignore[method-assign]
        self.watch.attach()

    def _set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol
        self.talk.transport.protocol = protocol

    def _report(self, piece: WatchedPiece) -> bool:
        self.heard.append(piece)
        return self.room

    def send(self, text: str) -> None:
        self.protocol.data_received(text.encode())

    @property
    def said(self) -> list[tuple[str, bytes]]:
        return [(piece.side, piece.data) for piece in self.heard]


def test_both_sides_are_told_until_it_ends_and_the_connection_goes_on() -> None:
    async def scene() -> None:
        watching = Watching()
        watching.send("one\n")
        assert watching.said == [("client", b"one\n"), ("server", b"ok one\n")]
        watching.watch.detach()
        assert watching.protocol is watching.talk.session
        watching.send("two\n")
        assert len(watching.heard) == 2
        assert watching.talk.sent == ["ok one", "ok two"]

    play(scene())


def test_it_begins_between_two_requests() -> None:
    async def scene() -> None:
        watching = Watching()
        watching.talk.session.data_received(b"wait a\nhal")  # something is under way, and half a request has come
        watching.send("f\n")
        watching.talk.adapter.release("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert watching.heard == []
        watching.send("one\n")
        assert watching.said == [("client", b"one\n"), ("server", b"ok one\n")]

    play(scene())


def test_after_a_gap_only_bytes_are_counted() -> None:
    async def scene() -> None:
        watching = Watching(room=False)
        watching.send("one\n")
        watching.room = True
        watching.send("two\n")
        lost = [piece.lost for piece in watching.heard]
        assert lost == [0, 4 + 7, 4 + 7 + 4, 4 + 7 + 4 + 7]
        assert all(not piece.data for piece in watching.heard[1:])

    play(scene())


def test_a_piece_that_is_too_long_is_a_gap() -> None:
    async def scene() -> None:
        watching = Watching()
        watching.send("x" * WATCHED_BYTES_MAX + "\n")
        assert watching.heard[0].lost == WATCHED_BYTES_MAX + 1
        assert watching.heard[0].data == b""

    play(scene())


def test_the_end_of_the_connection_is_told() -> None:
    async def scene() -> None:
        watching = Watching()
        watching.send("one\n")
        watching.protocol.connection_lost(None)
        assert watching.heard[-1].is_closed
        assert watching.talk.account.open == []

    play(scene())
