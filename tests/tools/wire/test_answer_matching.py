"""An answer is as expected, or differs at a byte that is named, or is not all there yet; whatever the way it was cut."""

import pytest

from braidlog.tools.wire.annotated_hex import NotationError, parse, words_of
from braidlog.tools.wire.answer_matching import Different, MoreNeeded, match


def matched(
    pattern: str, data: bytes, *, complete: bool = False, **known: int | bytes
) -> tuple[int, dict[str, int | bytes]]:
    found = match(parse(words_of(pattern, 1)), data, dict(known), complete=complete)
    return found.end, found.captured


AS_EXPECTED = [
    ("CA FE", b"\xca\xfe\x01", 2, {}),
    ("CA ?? 01", b"\xca\x77\x01", 3, {}),
    ("??{3} 01", b"\0\0\0\x01", 4, {}),
    ("u32 ?id", b"\0\0\0\x07", 4, {"id": 7}),
    ("u32le ?id", b"\x07\0\0\0", 4, {"id": 7}),
    ("i16 ?n i16 $n", b"\xff\xfe\xff\xfe", 4, {"n": -2}),
    ("bytes 2 ?t $t", b"abab", 4, {"t": b"ab"}),
    ('u32 len [ "OK " ... ]', b"\0\0\0\x08OK a=b c" + b"tail", 12, {}),
    ('u32 len [ "OK n=" dec ?n ]', b"\0\0\0\x07OK n=42", 11, {"n": 42}),
    ('u8 len [ u8 len [ ... ] "x" ]', b"\x04\x02abx", 5, {}),
    ('"hw=" ... "\\n"', b"hw=12\nV1", 6, {}),
    ('dec ?n "|"', b"-5|", 3, {"n": -5}),
    ("uvarint ?n varint ?m", b"\xac\x02\x01", 3, {"n": 300, "m": -1}),
    ("u32 crc32c [ ... ] 00", b"\xe3\x06\x92\x83", None, {}),
    ('body:[ "123456789" ] u32 crc32(body)', b"123456789\xcb\xf4\x39\x26", 13, {}),
    ("body:[ 01 02 ] u8 len(body)", b"\x01\x02\x02", 3, {}),
    ("repeat 2 { u8 ?? FF }", b"\x01\xff\x02\xff", 4, {"n": 1}),
    ("** **", b"ab", 2, {}),
]


@pytest.mark.parametrize(("pattern", "data", "end", "captured"), AS_EXPECTED)
def test_as_expected(pattern: str, data: bytes, end: int | None, captured: dict[str, int | bytes]) -> None:
    if end is None:
        with pytest.raises((MoreNeeded, NotationError)):
            matched(pattern, data)
        return
    assert matched(pattern, data) == (end, captured)
    if "..." not in pattern or "len" in pattern:
        for size in range(end):
            with pytest.raises(MoreNeeded):
                matched(pattern, data[:size])


DIFFERENT = [
    ("CA FE", b"\xca\xfd", 1, "FE"),
    ("CA FE", b"\xcb", 0, "CA"),
    ('"hello"', b"help", 3, "6C"),
    ("u32 7", b"\0\0\0\x08", 3, "07"),
    ("u16 $id", b"\0\x08", 1, "07"),
    ('u32 len [ "OK" ]', b"\0\0\0\x03OK!", 6, "the end of the announced 3 bytes"),
    ('u32 len [ "OK!" ]', b"\0\0\0\x02OK!", 6, "21"),
    ("u8 len [ u8 len [ ... ] ]", b"\x02\x05ab", 3, "5 bytes, the announced length"),
    ('"n=" dec ?n "|"', b"n=x|", 2, "a decimal number"),
    ("varint 5", b"\x04", 0, "5"),
    ("uvarint ?n", b"\xff" * 10 + b"\x01", 0, "a varint of at most 10 bytes"),
    ('u32 crc32 [ "123456789" ]', b"\xcb\xf4\x39\x27123456789", 0, "crc32 0xcbf43926"),
]


@pytest.mark.parametrize(("pattern", "data", "position", "expected"), DIFFERENT)
def test_the_first_byte_that_differs_is_named(pattern: str, data: bytes, position: int, expected: str) -> None:
    with pytest.raises(Different) as caught:
        matched(pattern, data, id=7)
    assert caught.value.position == position
    assert caught.value.expected.startswith(expected)


def test_the_end_of_the_connection_ends_what_is_open() -> None:
    assert matched("01 ...", b"\x01abc", complete=True)[0] == 4
    with pytest.raises(Different) as caught:
        matched("01 02", b"\x01", complete=True)
    assert caught.value.position == 1


def test_anything_needs_an_end() -> None:
    with pytest.raises(NotationError, match="must be followed by bytes or a text"):
        matched("... u8 ??", b"abc")
