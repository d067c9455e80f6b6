"""Who one is, on every door of a node: shown before the first frame, guessed slowly, and little is done for who does not say it.

Parametrised over the dialects that the server serves: a new one fails until it is in the table.
"""

import contextlib
import hashlib
import itertools
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.adapters.hostility import LARGE, check_running, is_cut_off, many, read_to_end
from tests.adapters.rustlog.client import framed
from tests.waiting import until

from braidlog.testing.server import ServerProcess
from braidlog.wire.dialect import dialects

DIALECTS = sorted(dialects())
CANARY = "canary-5f2e91"
"""A token that must never be seen in anything but a request."""
WRONG = "wrong-canary-77ab"
TOKENS = {"alice": CANARY, "bob": "bobs-token"}

_KAFKA_LIST = struct.pack(">hhih iih1s iiq", 2, 1, 1, -1, -1, 1, 1, b"t", 1, 0, -1)
_KAFKA_LISTED = struct.pack(">i ih1s iihqq", 1, 1, 1, b"t", 1, 0, 3, -1, -1)

ASKS: dict[str, tuple[bytes, bytes, bytes]] = {
    "cursus": (framed(b"LIST"), b"OK count=0 topics=", b"ERROR: authentication_required"),
    "flux": (b"V1|7|ADMIN_GET_METADATA|\n", b"V1|7|OK|topics=[]", b"V1|7|ERR|BAD_REQUEST|authentication is required"),
    "kafka": (framed(_KAFKA_LIST), _KAFKA_LISTED, b""),
    "mayfly": (
        bytes.fromhex("CAFE0102 00000007 00000003 000161"),
        bytes.fromhex("CAFE0102 00000007 00000000"),
        b"authentication is required",
    ),
    "mlog": (struct.pack(">HI", 25, 2) + b"{}", b'{"Topics":null}', b"authentication is required"),
    "rustlog": (framed(b'{"type":"ListTopics"}'), b'"topics":[]', b"authentication is required"),
}
"""What only someone who is known may ask; how that begins to be answered, and how it is refused: by Kafka without a word."""

_WHY = b"authentication failed: no such user, or not its token (a password is good on Kafka's port only)"
TURNED_AWAY: dict[str, bytes] = {
    "cursus": b'ERROR: authentication_failed reason="' + _WHY + b'"',
    "flux": b"V1|0|ERR|BAD_REQUEST|" + _WHY + b"\n",
    "kafka": b"",
    "mayfly": bytes.fromhex("CAFE0109 00000000") + struct.pack(">IHH", len(_WHY) + 4, 1, len(_WHY)) + _WHY,
    "mlog": b'{"code":0,"message":"' + _WHY + b'"}',
    "rustlog": b'"message":"' + _WHY + b'"',
}
"""An unknown user and a wrong token are told the same."""


def auth(token: str = CANARY, principal: str = "alice") -> bytes:
    return f"AUTH {principal} {token}\n".encode()


def settings(folder: Path, **more: object) -> list[str]:
    """A configuration with the tokens, and flags for the rest: `unauthenticated__seconds_max=1`."""
    lines = [f'{name} = "{hashlib.sha256(token.encode()).hexdigest()}"' for name, token in TOKENS.items()]
    file = folder / "braid.toml"
    file.write_text("\n".join(["[auth.tokens]", *lines]), "utf-8")
    changes = [f"auth.{name.replace('__', '.')}={value}" for name, value in more.items()]
    return ["--config", str(file), *(part for change in changes for part in ("--set", change))]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("guarded")
    with ServerProcess(folder / "data", *settings(folder, failure_delay_seconds_max=0.1)) as server:
        yield server


def talk(server: ServerProcess, dialect: str, data: bytes) -> bytes:
    """Send all of it, then read until the server closes."""
    with socket.create_connection(server.address(dialect), 60) as peer:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        return read_to_end(peer, 65536)


# ── The line ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_door_is_tried(guarded: ServerProcess) -> None:
    assert sorted(guarded.ports) == DIALECTS
    assert set(DIALECTS) <= set(ASKS)
    assert set(DIALECTS) <= set(TURNED_AWAY)


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("unguarded") / "data") as server:
        yield server


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_token_opens_the_door_and_is_not_answered(
    guarded: ServerProcess, unguarded: ServerProcess, dialect: str
) -> None:
    """In one write with the first request, as a client does that cannot wait for what its protocol does not know."""
    ask, answer, _ = ASKS[dialect]
    opened = talk(guarded, dialect, auth() + ask)
    assert answer in opened
    assert opened == talk(unguarded, dialect, ask)  # nothing before, nothing after


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_token_in_single_bytes(guarded: ServerProcess, dialect: str) -> None:
    ask, answer, _ = ASKS[dialect]
    with socket.create_connection(guarded.address(dialect), 60) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in auth() + ask:
            peer.sendall(bytes([byte]))
        peer.shutdown(socket.SHUT_WR)
        assert answer in read_to_end(peer, 65536)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_a_token_the_door_stays_closed(guarded: ServerProcess, dialect: str) -> None:
    ask, answer, refusal = ASKS[dialect]
    told = talk(guarded, dialect, ask)
    assert refusal in told
    assert answer not in told


@pytest.mark.parametrize("line", [auth(WRONG), auth(CANARY, "bob"), auth(CANARY, "nobody"), auth("", "alice")])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_wrong_token_is_told_so_and_ends_the_connection(guarded: ServerProcess, dialect: str, line: bytes) -> None:
    """The request behind it is not served."""
    ask, answer, refusal = ASKS[dialect]
    told = talk(guarded, dialect, line + ask)
    if line != auth("", "alice"):
        assert told.endswith(TURNED_AWAY[dialect]) or TURNED_AWAY[dialect] in told
    assert answer not in told
    if TURNED_AWAY[dialect]:
        assert told
        assert refusal not in told
    else:
        assert told == b""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_token_is_ever_shown(guarded: ServerProcess, dialect: str) -> None:
    """Neither a right one nor a wrong one, in no answer and no line of the log."""
    ask = ASKS[dialect][0]
    for line in (auth(), auth(WRONG), auth(WRONG, "\x00"), f"AUTH {CANARY}\n".encode(), auth(CANARY + " x")):
        told = talk(guarded, dialect, line + ask)
        assert CANARY.encode() not in told
        assert WRONG.encode() not in told
    said = guarded.errors()
    assert "authentication failed" in said
    assert CANARY not in said
    assert WRONG not in said
    assert "Traceback" not in said


def test_a_token_shown_through_cursus_is_not_shown_either(guarded: ServerProcess) -> None:
    for text in (
        f"AUTH principal=alice token={WRONG}",
        f"LIST principal=alice auth_token={CANARY}",
        f"AUTH token={CANARY}",
    ):
        assert CANARY.encode() not in talk(guarded, "cursus", framed(text.encode()))
    assert CANARY not in guarded.errors()
    assert WRONG not in guarded.errors()


# ── Guessing ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_guesses_slow_down_over_all_doors_together(tmp_path: Path) -> None:
    """Each is answered later than the one before, whichever door it tries."""
    with ServerProcess(tmp_path / "data", *settings(tmp_path, failure_delay_seconds=0.05)) as server:
        seconds = []
        for number in range(5):
            dialect = DIALECTS[number % len(DIALECTS)]
            began = time.monotonic()
            assert TURNED_AWAY[dialect] in talk(server, dialect, auth(WRONG))
            seconds.append(time.monotonic() - began)
        assert all(taken >= 0.045 * 2**number for number, taken in enumerate(seconds)), seconds


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_a_guesser_slows_nobody_else(tmp_path: Path, address: str) -> None:
    """Who has the right token is served while the guesser waits to hear that it was wrong, also at the guesser's address."""
    flags = settings(tmp_path, failure_delay_seconds=300, failure_delay_seconds_max=300)
    with ServerProcess(tmp_path / "data", *flags) as server, many(server, "flux", 1) as (guesser,):
        guesser.sendall(auth(WRONG))
        for dialect in (*DIALECTS, *DIALECTS):  # when the first half is served, the line before them was heard
            with socket.socket() as other:
                other.settimeout(60)
                other.bind((address, 0))
                other.connect(server.address(dialect))
                other.sendall(auth() + ASKS[dialect][0])
                assert ASKS[dialect][1] in other.recv(65536)
        guesser.setblocking(False)
        with pytest.raises(BlockingIOError):
            guesser.recv(1)


def test_ten_connections_guess_no_faster_than_one(tmp_path: Path) -> None:
    """However many connections guess at once, one hears per pause that it was wrong: ten of them take nine pauses."""
    flags = settings(tmp_path, failure_delay_seconds=0.1, failure_delay_seconds_max=0.1)
    with ServerProcess(tmp_path / "data", *flags) as server, many(server, "flux", 10) as peers:
        began = time.monotonic()
        for peer in peers:
            peer.sendall(auth(WRONG))
        for peer in peers:
            assert read_to_end(peer, 1000) == TURNED_AWAY["flux"]
        assert time.monotonic() - began >= 0.9
        check_running(server)


# ── Strangers ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stranger_sends_only_small_frames(guarded: ServerProcess, dialect: str) -> None:
    """A large one is refused by what announces it, without waiting for it; with a token it is waited for."""
    header, size = LARGE[dialect]
    large = header + (b"x" * 5000 if dialect == "flux" else b"")
    with socket.create_connection(guarded.address(dialect), 60) as peer:
        peer.sendall(large)
        told = read_to_end(peer, 65536).decode("utf-8", "replace")
        assert "4096" in (told if TURNED_AWAY[dialect] else guarded.errors())
    with socket.create_connection(guarded.address(dialect), 60) as peer:
        peer.sendall(auth() + large)
        # Answered only by an error that comes when the frame is whole, or, of one that cannot be, by nothing.
        check_running(guarded)
        assert size > 4096
        assert not is_cut_off(peer)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("impatient")
    flags = settings(
        folder,
        unauthenticated__first_frame_seconds_max=0.2,
        unauthenticated__seconds_max=1.5,
        unauthenticated__per_address_max=3,
        failure_delay_seconds_max=0.1,
    )
    with ServerProcess(folder / "data", *flags) as server:
        yield server


def open_each(server: ServerProcess, names: Iterable[str], opened: contextlib.ExitStack) -> list[socket.socket]:
    """A connection to each of the dialects, from an address of its own: of one address only few strangers are let in."""
    return [
        opened.enter_context(
            socket.create_connection(server.address(dialect), 60, source_address=(f"127.0.1.{number}", 0))
        )
        for number, dialect in enumerate(names, 1)
    ]


def test_who_does_not_say_who_it_is_is_shown_out(impatient: ServerProcess) -> None:
    """At every door, having said nothing or a part of the line; all at once, since they wait."""
    cases = list(itertools.product(DIALECTS, ("", "A", "AUTH alice")))
    with contextlib.ExitStack() as opened:
        peers = open_each(impatient, [dialect for dialect, _ in cases], opened)
        for peer, (_, begun) in zip(peers, cases, strict=True):
            peer.sendall(begun.encode())
        for peer, (dialect, begun) in zip(peers, cases, strict=True):
            host, port = peer.getsockname()
            assert read_to_end(peer, 0) == b"", (dialect, begun)
            assert f"closing {dialect} {host}:{port}: not authenticated in time" in impatient.errors()


def test_asking_in_vain_buys_no_time(impatient: ServerProcess) -> None:
    with contextlib.ExitStack() as opened:
        asking = dict(zip(DIALECTS, open_each(impatient, DIALECTS, opened), strict=True))
        refused = set()

        def is_over(dialect: str) -> bool:
            ask, _, refusal = ASKS[dialect]
            try:
                asking[dialect].sendall(ask)
                answer = asking[dialect].recv(65536)
            except ConnectionError:
                return True
            if refusal in answer:
                refused.add(dialect)
            return not answer

        def all_over() -> bool:
            for dialect in list(asking):
                if is_over(dialect):
                    del asking[dialect]
            return not asking

        until(all_over)
        assert refused == set(DIALECTS)


def test_who_has_said_it_may_stay(impatient: ServerProcess) -> None:
    """It is silent for longer than strangers may be: one that came after it is shown out, and it is still served."""
    with contextlib.ExitStack() as opened:
        known = dict(zip(DIALECTS, open_each(impatient, DIALECTS, opened), strict=True))
        for dialect, peer in known.items():
            ask, answer, _ = ASKS[dialect]
            peer.sendall(auth() + ask)
            assert answer in peer.recv(65536), dialect
        strangers = open_each(impatient, DIALECTS, opened)
        for stranger, dialect in zip(strangers, DIALECTS, strict=True):
            stranger.sendall(ASKS[dialect][0])
        for stranger in strangers:
            while stranger.recv(65536):
                pass
        for dialect, peer in known.items():
            ask, answer, _ = ASKS[dialect]
            peer.sendall(ask)
            assert answer in peer.recv(65536), dialect


def test_few_strangers_of_one_address(tmp_path: Path) -> None:
    """Over all doors together. One more takes the place of the oldest; those who have said who they are keep theirs."""
    ask, answer, refusal = ASKS["flux"]
    limits = {
        "unauthenticated__per_address_max": 3,
        "unauthenticated__seconds_max": 600,
        "unauthenticated__first_frame_seconds_max": 600,
    }
    with ServerProcess(tmp_path / "data", *settings(tmp_path, **limits)) as server, many(server, "flux", 3) as known:
        for peer in known:
            peer.sendall(auth() + ask)
            assert answer in peer.recv(65536)
        with many(server, "flux", 3) as strangers:
            for peer in strangers:
                peer.sendall(ask)
                assert refusal in peer.recv(65536)
            for dialect in DIALECTS:
                with socket.create_connection(server.address(dialect), 60) as late:
                    late.sendall(auth() + ASKS[dialect][0])
                    assert ASKS[dialect][1] in late.recv(65536)
            until(lambda: is_cut_off(strangers[0]))
            assert "too many unauthenticated connections" in server.errors()
        for peer in known:
            peer.sendall(ask)
            assert answer in peer.recv(65536)


def test_a_client_certificate_needs_no_token_and_loopback_stays_open(tmp_path: Path) -> None:
    """Without tokens nobody is a stranger: neither limits nor the line are asked for."""
    with ServerProcess(tmp_path / "data", "--set", "auth.unauthenticated.per_address_max=1") as server:
        for dialect in DIALECTS:
            with many(server, dialect, 5) as peers:
                for peer in peers:
                    peer.sendall(ASKS[dialect][0])
                    assert ASKS[dialect][1] in peer.recv(65536)
