"""Records as text: formats written and read. No server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.cli.records.text import (
    ENCODINGS,
    RecordDefaults,
    json_reader,
    split_format,
    text_reader,
    unescape,
    writer,
)
from braidlog.client.drivers.contract import ConsumedRecord

RECORD = ConsumedRecord("clicks", 3, 42, b"ada", b"one\xff", (("a", b"1"), ("b", None)), 1_700_000_000_123)
BARE = ConsumedRecord("clicks", 0, 0, None, None)


@pytest.mark.parametrize(
    ("shape", "expected", "of_bare"),
    [
        ("%s\\n", b"one\xff\n", b"\n"),
        ("%t/%p@%o", b"clicks/3@42", b"clicks/0@0"),
        ("%k:%K %S", b"ada:3 4", b":-1 -1"),
        ("%T %D", b"1700000000123 2023-11-14T22:13:20.123+00:00", b"-1 "),
        ("%h", b"a=1,b=", b""),
        ("100%%\\t\\x41\\0\\\\\\r", b"100%\tA\0\\\r", b"100%\tA\0\\\r"),
        ("", b"", b""),
    ],
)
def test_formats(shape: str, expected: bytes, of_bare: bytes) -> None:
    assert writer(shape, "text")(RECORD) == expected
    assert writer(shape, "text")(BARE) == of_bare


def test_encodings() -> None:
    assert writer("%k %s", "hex")(RECORD) == b"616461 6f6e65ff"
    assert writer("%k %s", "base64")(RECORD) == b"YWRh b25l/w=="


@pytest.mark.parametrize("shape", ["%", "%y", "\\q", "100%", "ends with \\"])
def test_what_no_format_is(shape: str) -> None:
    with pytest.raises(ValueError, match=r"unknown|lone"):
        split_format(shape)


def test_a_line_is_taken_apart() -> None:
    read = text_reader("%p %T %k:%s\\n", "text", RecordDefaults())
    record, partition = read(b"7 1000 ada:a:b ")
    assert (record.key, record.value, record.timestamp_ms, partition) == (b"ada", b"a:b ", 1000, 7)
    record, partition = text_reader("%h|%s", "hex", RecordDefaults(headers=(("x", b"y"),)))(b"a=01,b=|ff00")
    assert (record.value, record.headers, partition) == (b"\xff\x00", (("x", b"y"), ("a", b"\x01"), ("b", b"")), None)


def test_what_the_options_say_is_for_lines_that_do_not() -> None:
    every = RecordDefaults(key=b"k", timestamp_ms=5, partition=2, empty_is_none=True)
    record, partition = text_reader("%s", "text", every)(b"")
    assert (record.key, record.value, record.timestamp_ms, partition) == (b"k", None, 5, 2)
    record, partition = json_reader(every)(b'{"value": "v", "key": "own", "timestamp_ms": 9, "partition": 0}')
    assert (record.key, record.value, record.timestamp_ms, partition) == (b"own", b"v", 9, 0)


@pytest.mark.parametrize(
    ("shape", "encoding", "line"),
    [
        ("%k:%s", "text", b"no separator"),
        ("%p %s", "text", b"seven x"),
        ("%s", "hex", b"0g"),
        ("%s", "hex", b"\xff"),
        ("%s", "base64", b"a"),
        ("%s", "base64", b"b2s=!"),
        ("%h %s", "text", b"=1 x"),
    ],
)
def test_lines_that_do_not_fit(shape: str, encoding: str, line: bytes) -> None:
    with pytest.raises(ValueError, match=r"not|form|name=value"):
        text_reader(shape, encoding, RecordDefaults())(line)


@pytest.mark.parametrize("shape", ["%o %s", "%s %s", "%D", "%t"])
def test_formats_that_cannot_be_read(shape: str) -> None:
    with pytest.raises(ValueError, match="cannot be parsed"):
        text_reader(shape, "text", RecordDefaults())


def test_delimiters() -> None:
    assert unescape("\\n") == b"\n"
    assert unescape("\\0%k\\x1e") == b"\0%k\x1e"


@given(
    st.sampled_from(sorted(ENCODINGS)),
    st.binary(max_size=20).filter(lambda key: b"\t" not in key),
    st.binary(max_size=20),
)
def test_text_there_and_back(encoding: str, key: bytes, value: bytes) -> None:
    line = writer("%k\\t%s", encoding)(ConsumedRecord("t", 0, 0, key, value))
    record, _ = text_reader("%k\\t%s", encoding, RecordDefaults())(line)
    assert (record.key, record.value) == (key, value)
