"""Taking many lines at once gives what taking them one by one gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import ReceiveBuffer

LIMIT = 12


def one_by_one(pieces: list[bytes]) -> list[bytes | str]:
    inbox, lines = ReceiveBuffer(), list[bytes | str]()
    for piece in pieces:
        inbox.feed(piece)
        try:
            while (line := inbox.take_line(LIMIT)) is not None:
                lines.append(line)
        except ProtocolError as error:
            return [*lines, str(error)]
    return lines


def many_at_once(pieces: list[bytes]) -> list[bytes | str]:
    inbox, lines = ReceiveBuffer(), list[bytes | str]()
    for piece in pieces:
        inbox.feed(piece)
        try:
            while taken := inbox.take_lines(LIMIT):
                lines += taken
        except ProtocolError as error:
            return [*lines, str(error)]
    return lines


@given(st.lists(st.text("ab\n", max_size=20).map(str.encode), max_size=8))
def test_the_same_lines(pieces: list[bytes]) -> None:
    assert many_at_once(pieces) == one_by_one(pieces)


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1])
def test_the_limit_is_the_same(size: int) -> None:
    pieces = [b"a" * size + b"\n"]
    assert many_at_once(pieces) == one_by_one(pieces)
    assert (many_at_once(pieces) == [b"a" * size]) == (size == LIMIT)


def test_lines_longer_than_a_window_and_many_windows() -> None:
    inbox = ReceiveBuffer()
    lines = [b"x" * 200_000, b"", *[b"%d" % at for at in range(50_000)]]
    inbox.feed(b"\n".join(lines) + b"\nrest")
    found: list[bytes] = []
    while taken := inbox.take_lines(1 << 20):
        found += taken
    assert found == lines
    assert inbox.take(4) == b"rest"
