"""Slices of files among the bytes of answers: in order, few writes, never fewer bytes than announced."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from tests.server.toy import Account, Scene, ToyAdapter, until

from braidlog.model.errors import StorageFault
from braidlog.server.net.connection_limits import SessionLimits
from braidlog.server.net.connection_tap import TappedTransport
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.send_queue import TOGETHER_BYTES, Led, SendQueue, read_slice, send_from_file, size_of, writes
from braidlog.server.net.session import Session
from braidlog.storage.files import OsDisk
from braidlog.wire.contract import Output


class Piece:
    """A slice; with `short`, a file that has become shorter meanwhile."""

    source = None

    def __init__(self, content: bytes, *, short: int = 0) -> None:
        self.size = len(content)
        self._content = content[: len(content) - short]
        self.reads = 0

    def read(self, start: int = 0) -> bytes:
        self.reads += 1
        return self._content[start:]


class FilePiece(Piece):
    """One whose bytes are in a file behind `lead` others; `reads` counts how often they were asked for as bytes."""

    def __init__(self, path: Path, content: bytes, *, short: int = 0, lead: int = 777) -> None:
        super().__init__(content, short=short)
        path.write_bytes(bytes(lead) + self._content)
        self._file = OsDisk().open(str(path), writable=False)
        self._lead = lead

    @property
    def source(self) -> tuple[int, int]:  # type: ignore[override]
        return self._file.fileno(), self._lead


LARGE = b"L" * 100_000


def test_the_size_counts_what_is_in_files() -> None:
    assert size_of(b"abc") == 3
    assert size_of([b"abc", Piece(LARGE), b"", Piece(b"x")]) == 100_004


def test_order_and_few_writes() -> None:
    small, large = Piece(b"small"), Piece(LARGE)
    assert list(writes([b"a", [b"b", small, b"c"], b"d"])) == [b"absmallcd"]
    assert list(writes([b"a", [b"b", large, b"c"], b"d"])) == [[b"ab", LARGE, b"cd"]]
    assert list(writes([[large], b"", [Piece(LARGE)]])) == [[LARGE, b"", LARGE]]
    enough = TOGETHER_BYTES // len(LARGE) + 1
    assert list(writes([*[(b"1", LARGE)] * enough, (b"2", LARGE), b"3"])) == [
        [b"1", LARGE] * enough,
        [b"2", LARGE, b"3"],
    ]
    assert list(writes([b"alone"])) == [b"alone"]
    assert list(writes([])) == []


def test_pieces_of_bytes_leave_as_they_are_unless_they_are_small() -> None:
    outbox = SendQueue()
    outbox.add_pieces([b"head", LARGE, b"tail"], 100_008)
    assert list(outbox.take_ready()) == [[b"head", LARGE, b"tail"]]
    outbox.add_pieces([b"a", b"b"], 2)
    outbox.add(b"c")
    assert outbox.hold(b"c") == 1
    assert list(outbox.take_ready()) == [b"abc"]
    outbox.add((b"head", LARGE))
    assert outbox.hold((b"head", LARGE)) == 100_004
    assert b"".join(b"".join(data) for data in outbox.take_ready() if isinstance(data, list)) == b"head" + LARGE
    assert outbox.held_bytes == 0


def test_nothing_is_read_before_it_leaves() -> None:
    first, second = Piece(bytes(TOGETHER_BYTES)), Piece(bytes(TOGETHER_BYTES))
    leaving = writes([[first, second]])
    assert (first.reads, second.reads) == (0, 0)
    next(leaving)
    assert (first.reads, second.reads) == (1, 0)


def test_a_file_that_gives_fewer_bytes_is_a_fault() -> None:
    with pytest.raises(StorageFault, match="a slice of 100000 bytes gave 99999"):
        list(writes([[Piece(LARGE, short=1)]]))


@pytest.mark.parametrize("short", [0, 1])
def test_a_connection_sends_slices_in_their_place_or_ends(short: int, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        scene = Scene()
        piece = Piece(LARGE, short=short)
        scene.session.connection.respond = lambda *_: [b"<", piece, b">"]
        scene.send("one", "two")
        if short:
            assert scene.transport.aborted
            assert "a slice of" in caplog.text
        else:
            assert b"".join(scene.transport.writes) == (b"<" + LARGE + b">") * 2
            assert not scene.transport.closed
            assert scene.session.held_bytes() == 0

    asyncio.run(play())


# -- out of the file, without reading it ---------------------------------------------------------------------------

RANDOM = os.urandom(3_000_000)


def test_a_large_slice_of_a_file_is_left_where_it_is(tmp_path: Path) -> None:
    piece, little = FilePiece(tmp_path / "a", LARGE), FilePiece(tmp_path / "b", b"little")
    outbox = SendQueue()
    outputs: list[Output] = [b"a", [b"b", piece, b"c", little], b"d", [b"e", LARGE], [b"f", piece]]
    for output in outputs:
        outbox.hold(output)
        outbox.add(output)
    assert list(outbox.take_ready()) == [Led(b"ab", piece), [b"clittlede", LARGE], Led(b"f", piece)]
    assert (piece.reads, little.reads, outbox.held_bytes) == (0, 1, 0)


def test_a_socket_gets_as_much_as_it_takes(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        piece = FilePiece(tmp_path / "a", RANDOM)
        sent = send_from_file(ours.fileno(), Led(b"head", piece))
        assert 4 < sent < len(RANDOM), "the file goes on where the socket is full"
        assert theirs.recv(sent, socket.MSG_WAITALL) == (b"head" + RANDOM)[:sent]
        assert ours.fileno() >= 0, "it was borrowed"
        assert send_from_file(ours.fileno(), Led(b"", FilePiece(tmp_path / "b", LARGE))) > 0
        theirs.close()
        assert send_from_file(ours.fileno(), Led(b"head", piece)) == 0, "who is gone is for the transport to find"


def test_a_file_that_has_become_shorter_is_a_fault_of_the_rest(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        piece = FilePiece(tmp_path / "a", LARGE, short=1)
        assert send_from_file(ours.fileno(), Led(b"head", piece)) == 4 + len(LARGE) - 1
    with pytest.raises(StorageFault, match="a slice of 100000 bytes gave 99999"):
        read_slice(piece, len(LARGE) - 1)


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("is_watched", [False, True])
def test_a_client_gets_the_same_bytes_however_slowly_it_takes_them(
    tmp_path: Path, runner: Callable[..., None], *, is_watched: bool
) -> None:
    """Small answers before and behind, several large ones in a row, and a client that does not read at first."""
    pieces = [FilePiece(tmp_path / f"{number}", RANDOM[number:]) for number in range(4)]
    rows = [[b"[", Piece(RANDOM[-90_000 - number :]), b"]"] for number in range(9)]
    answers: list[Any] = [b"first", *([b"<", piece, b">"] for piece in pieces), *rows, b"last"]
    whole = b"".join(each if isinstance(each, bytes) else each[0] + each[1].read() + each[2] for each in answers)
    for piece in pieces:
        piece.reads = 0

    watched: list[bytes] = []

    async def play() -> None:
        account, budget = Account(), Budget(2**30)
        session = Session(ToyAdapter(), account, SessionLimits(), budget)
        line = iter(answers)
        session.connection.respond = lambda *_: next(line)
        server = await asyncio.get_running_loop().create_server(lambda: session, "127.0.0.1", 0)
        server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # those it accepts have the same
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=4096)
        await until(lambda: bool(account.open))
        if is_watched:
            assert session.outbox.transport is not None
            session.outbox.speak_through(
                cast("asyncio.Transport", TappedTransport(session.outbox.transport, watched.append))
            )
        writer.write(b"ask\n" * len(answers))
        await until(lambda: session.outbox.bytes_out > len(RANDOM))
        assert await reader.readexactly(len(whole)) == whole
        await until(lambda: session.held_bytes() == 0)
        budget.settle()
        assert budget.bytes_held == 0
        if is_watched:
            assert b"".join(watched) == whole
        else:
            assert pieces[0].reads == 1, "what the socket did not take is read once"
        writer.close()
        await until(lambda: not account.open)
        server.close()

    runner(play())


def test_nothing_overtakes_what_waits_in_the_transport(tmp_path: Path) -> None:
    """Though the socket would take it: bytes that wait may be on their way to it at that moment."""

    async def play() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            scene = Scene()
            scene.transport.get_extra_info = lambda name, default=None: ours if name == "socket" else default  # type: ignore[method-assign]
            scene.session.connection_made(scene.transport)
            piece = FilePiece(tmp_path / "a", LARGE)
            scene.session.connection.respond = lambda *_: [b"<", piece, b">"]
            scene.transport.stuck, scene.transport.buffered = True, 1
            scene.send("one")
            assert b"".join(scene.transport.writes) == b"<" + LARGE + b">"
            with pytest.raises(BlockingIOError):
                theirs.recv(1)
            scene.transport.drain()
            scene.transport.writes.clear()
            scene.send("two")
            assert theirs.recv(2 * len(LARGE)) + b"".join(scene.transport.writes) == b"<" + LARGE + b">"
            assert scene.transport.writes == [b">"]

    asyncio.run(play())
