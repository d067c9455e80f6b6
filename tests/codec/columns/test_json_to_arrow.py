"""What the kernel of JSON objects reads, and what it leaves to a decoder of whole ones; drawn objects are in tests/tables."""

import struct

import pytest

from braidlog.codec.columns.json_to_arrow import COMPILED, LONG, TEXT, read_objects

NAMES, KINDS = (b"a", b"b"), bytes([LONG, TEXT])


def read(text: bytes, names: tuple[bytes, ...] = NAMES) -> object:
    return read_objects((None, struct.pack("<2i", 0, len(text)), text), 0, 1, names, KINDS, bytes)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":2}',
        b'{"b":"x","a":1,"b":"y"}',
        b'{"a":1,"c":2}',
        b'{"\\u0061":1}',
        b'{"a":1.5}',
        b'{"a":9223372036854775808}',
        b'{"b":"\\ud800"}',
        b'{"a":1',
        b"[1]",
        b"",
    ],
    ids=[
        "a field twice",
        "a field twice, not in a row",
        "no such field",
        "a name with an escape",
        "a fraction",
        "too large",
        "half a pair",
        "no end",
        "a list",
        "nothing",
    ],
)
def test_what_is_odd_is_left_to_a_decoder(text: bytes) -> None:
    assert read(text) is None


def test_what_is_plain_is_read_where_a_compiler_was_found() -> None:
    assert (read(b'{"b":"x","a":-7}') is not None) == COMPILED


def test_without_names_nothing_is_read() -> None:
    assert read(b'{"a":1}', ()) is None
