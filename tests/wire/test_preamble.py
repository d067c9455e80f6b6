"""The line before the first frame: what it looks like, what it can never be taken for, and that no token is ever shown."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import feed

from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.cursus.connection import ServerConnection as CursusServer
from braidlog.wire.flux.connection import ServerConnection as FluxServer
from braidlog.wire.mlog.connection import ServerConnection as MlogServer
from braidlog.wire.preamble import LINE_BYTES_MAX, NO_INTRODUCTION, Introduction, Preamble
from braidlog.wire.rustlog.connection import ServerConnection as RustlogServer

LINE = b"AUTH alice s3cret-t0ken\n"
"""As docs/adr/0013-auth-line.md writes it."""

FIRST_FRAMES = {
    "mlog Produce": bytes.fromhex("0002 0000001a") + b'{"Topic":"t","Value":"eA"}',
    "rustlog JSON": b'\x00\x00\x00\x0f{"type":"Ping"}',
    "rustlog binary": b"\x00\x00\x00\x01\xff",
    "flux": b"V1|1|PING|\n",
    "cursus": b"\x00\x00\x00\x04LIST",
    "cursus's own AUTH": b"\x00\x00\x00\x1fAUTH principal=alice token=s3cret",
    "kafka ApiVersions": bytes.fromhex("00000010 0012 0003 00000001 0001 78 00 0178 0178 00"),
    "mayfly": bytes.fromhex("cafe"),
    "nearly": b"AUTHENTIC\n",
    "lower case": b"auth alice s3cret\n",
}


def hear(*pieces: bytes) -> tuple[object, bytes]:
    """The first event that is one, and what is left for the dialect."""
    preamble = Preamble()
    event: object = NEED_DATA
    for piece in pieces:
        preamble.receive(piece)
        if event is NEED_DATA:
            event = preamble.next_event()
    return event, preamble.take_rest()


def test_an_introduction_and_what_follows_it() -> None:
    assert hear(LINE + b"V1|1|PING|\n") == (Introduction("alice", b"s3cret-t0ken"), b"V1|1|PING|\n")
    assert hear(b"AUTH  zo\xc3\xab \xff\xfe \r\n") == (Introduction("zoë", b"\xff\xfe"), b"")


@pytest.mark.parametrize("name", FIRST_FRAMES)
def test_no_dialect_is_taken_for_one(name: str) -> None:
    frame = FIRST_FRAMES[name]
    assert hear(frame) == (NO_INTRODUCTION, frame)
    assert hear(*(frame[at : at + 1] for at in range(len(frame)))) == (NO_INTRODUCTION, frame)


@pytest.mark.parametrize("connection", [MlogServer, RustlogServer, CursusServer])
def test_no_dialect_takes_one_for_its_own(connection: type) -> None:
    """Even a server that knows nothing of introductions refuses it by its first bytes, before it waits for more."""
    end = connection()
    (event,) = feed(end, LINE[:6])
    assert isinstance(event, Refused)
    assert event.close


def test_flux_answers_one_with_an_error() -> None:
    end = FluxServer()
    (event,) = feed(end, LINE)
    assert isinstance(event, Refused)
    assert end.respond(event, event.answer).startswith(b"V1|0|ERR|BAD_REQUEST|")


@given(st.lists(st.integers(1, len(LINE) + 10), max_size=6))
def test_however_it_is_cut(cuts: list[int]) -> None:
    data = LINE + b"\x00\x00\x00\x04LIST"
    places = [0, *sorted(cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    assert hear(*pieces) == (Introduction("alice", b"s3cret-t0ken"), b"\x00\x00\x00\x04LIST")


def test_every_shorter_line_asks_for_more() -> None:
    for size in range(len(LINE)):
        assert hear(LINE[:size])[0] is NEED_DATA


@pytest.mark.parametrize(
    "line", [b"AUTH \n", b"AUTH alice\n", b"AUTH a b c\n", b"AUTH \xff token\n", b"AUTH " + b"x" * LINE_BYTES_MAX]
)
def test_what_is_refused_and_shows_no_token(line: bytes) -> None:
    event, _ = hear(line)
    assert isinstance(event, Refused)
    assert event.close
    assert event.error.__cause__ is None
    assert "token" not in str(event.error) or "AUTH <principal> <token>" in str(event.error)


def test_an_introduction_does_not_show_its_token() -> None:
    assert "s3cret" not in repr(Introduction("alice", b"s3cret")) + str(Introduction("alice", b"s3cret"))


@given(st.binary(max_size=60))
def test_garbage_never_raises(data: bytes) -> None:
    event, rest = hear(data)
    assert event is NEED_DATA or event is NO_INTRODUCTION or isinstance(event, Introduction | Refused)
    if event is NO_INTRODUCTION:
        assert rest == data


@given(st.binary(max_size=60))
def test_damaged_introductions_never_raise(data: bytes) -> None:
    event, _ = hear(b"AUTH " + data + b"\n")
    if isinstance(event, Refused):
        assert type(event.error) is ProtocolError


TURNED_AWAY: dict[type, bytes] = {
    MlogServer: b'{"code":0,"message":"go away"}',
    FluxServer: b"V1|0|ERR|BAD_REQUEST|go away\n",
    CursusServer: b"ERROR: authentication_failed",
    RustlogServer: b'"message":"go away"',
}


@pytest.mark.parametrize("connection", TURNED_AWAY)
def test_who_is_turned_away_is_told_in_its_dialect(connection: type) -> None:
    end = connection()
    refused = end.turn_away("go away")
    assert refused.close
    assert TURNED_AWAY[connection] in end.respond(refused, refused.answer)
    assert feed(end, b"\x00\x00\x00\x04LIST") == []


def test_rustlog_turns_away_in_the_form_that_was_begun() -> None:
    end = RustlogServer()
    end.receive(b"\x00\x00\x00\x01\xff")
    refused = end.turn_away("go away")
    assert end.respond(refused, refused.answer)[4:5] == b"\xfe"


@pytest.mark.parametrize(
    ("connection", "large"),
    [
        (MlogServer, b"\x00\x02\x00\x00\x10\x01"),
        (RustlogServer, b"\x00\x00\x10\x01"),
        (CursusServer, b"\x00\x00\x10\x01"),
        (FluxServer, b"V" * 4097),
    ],
)
def test_the_frame_limit_can_be_lowered(connection: type, large: bytes) -> None:
    """Refused by what announces it, and taken again once the limit is the dialect's own."""
    end = connection()
    before, end.frame_bytes_max = end.frame_bytes_max, 4096
    (event,) = feed(end, large)
    assert isinstance(event, Refused)
    assert event.close
    end = connection()
    assert end.frame_bytes_max == before
    assert feed(end, large) == []
