"""Slices of files among the bytes of answers: in order, few writes, never fewer bytes than announced."""

import asyncio

import pytest
from tests.server.toy import Scene

from braidlog.model.errors import StorageFault
from braidlog.server.output import size_of, writes


class Piece:
    """A slice; with `short`, a file that has become shorter meanwhile."""

    def __init__(self, content: bytes, *, short: int = 0) -> None:
        self.size = len(content)
        self._content = content[: len(content) - short]
        self.reads = 0

    def read(self) -> bytes:
        self.reads += 1
        return self._content


LARGE = b"L" * 100_000


def test_the_size_counts_what_is_in_files() -> None:
    assert size_of(b"abc") == 3
    assert size_of([b"abc", Piece(LARGE), b"", Piece(b"x")]) == 100_004


def test_order_and_few_writes() -> None:
    small, large = Piece(b"small"), Piece(LARGE)
    assert list(writes([b"a", [b"b", small, b"c"], b"d"])) == [b"absmallcd"]
    assert list(writes([b"a", [b"b", large, b"c"], b"d"])) == [b"ab", LARGE, b"cd"]
    assert list(writes([[large], b"", [Piece(LARGE)]])) == [LARGE, b"", LARGE]
    assert list(writes([b"alone"])) == [b"alone"]
    assert list(writes([])) == []


def test_nothing_is_read_before_it_leaves() -> None:
    first, second = Piece(LARGE), Piece(LARGE)
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
