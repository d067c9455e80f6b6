"""Annotated hex becomes the bytes that a person meant. Golden bytes: the documents' own listings, published check values."""

import importlib
import re
import zlib
from pathlib import Path

import pytest
from tests.wire.vector_files import spelled

from braidlog.tools.wire.annotated_hex import NotationError, encode, parse, words_of
from braidlog.tools.wire.script import Expect, ExpectClose, ExpectNothing, Send, read_script

WIRE_TESTS = Path(__file__).parents[2] / "wire"


def bytes_of(text: str, variables: dict[str, int | bytes] | None = None) -> bytes:
    words = [word for number, line in enumerate(text.splitlines(), 1) for word in words_of(line, number)]
    return encode(parse(words), variables or {})


def crc(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


GOLDEN = {
    # the Mayfly protocol document, "Hex Dump Sender" (its lengths corrected: the Mayfly page, §6) and "Source RCON"
    "CA FE 01 00 u32 1 u32 len [ u16 len [ `secrettoken` ] ]": "cafe01000000000100 00000d000b736563726574746f6b656e",
    'u32le len [ u32le 1 u32le 3 "mypass" 00 00 ]': "10000000 01000000 03000000 6d79706173730000",
    # the Mayfly protocol document, MQTT properties: 1800 seconds
    "05 11 u32 1800": "0511 00000708",
    # the check values that every catalogue of CRCs gives for "123456789"
    'u32 crc32 [ "123456789" ]': "cbf43926 313233343536373839",
    'u32 crc32c [ "123456789" ]': "e3069283 313233343536373839",
    'body:[ "123456789" ] u32le crc32(body)': "313233343536373839 2639f4cb",
    # lengths before checksums, inner checksums before outer ones
    "u32 crc32 [ u16 len [ AA BB ] ]": crc(b"\0\2\xaa\xbb") + "0002aabb",
    "u32 crc32 [ u32 crc32 [ AA ] ]": crc(bytes.fromhex(crc(b"\xaa")) + b"\xaa") + crc(b"\xaa") + "aa",
    "u16 len+2 [ 01 02 03 ]": "0005 010203",
    "u16 len(b)-1 a:[ 01 ] b:[ 02 03 04 ]": "0002 01 020304",
    # LEN: up to the next one, or the end
    'LEN "ab" LEN LEN 01': "00000002 6162 00000000 00000001 01",
    # integers of every width, both orders, both signs
    "u8 255 i8 -1 u16 258 i16 -2 u24 66051 u32 0xCAFEBABE i64 -1 u64 18446744073709551615": (
        "ff ff 0102 fffe 010203 cafebabe ffffffffffffffff ffffffffffffffff"
    ),
    "u16le 258 i32le -2": "0201 feffffff",
    # varints: 300 and -1, as Google's page on encoding has them
    "uvarint 300 varint -1 varint 1 varint -64": "ac02 01 02 7f",
    "varint len [ 01 02 03 ]": "06 010203",
    "dec 42 dec -7": "3432 2d37",
    "repeat 3 { u8 $n `x` }": "007801780278",
    "repeat 2 { u8 len [ repeat 2 { AA } ] }": "02aaaa 02aaaa",
    r'"a\n\r\t\0\\\"\xff\u00e9"': "61 0a 0d 09 00 5c 22 ff c3a9",
    "`back\\slash`": b"back\\slash".hex(),
    'cafe # a comment, ] } " included': "cafe",
}


@pytest.mark.parametrize("text", GOLDEN, ids=str)
def test_bytes(text: str) -> None:
    assert bytes_of(text).hex() == GOLDEN[text].replace(" ", "")


REFUSED = {
    "CAF": "odd number of hex digits",
    "hello": "unknown word 'hello'",
    '"no end': "does not end on its line",
    "u8 256": "256 does not fit u8",
    "i8 -129": "-129 does not fit i8",
    "u16": "expected a value for u16",
    "u16 many": "invalid value 'many' for u16",
    "[ 01": "missing closing bracket ]",
    "01 ]": "unmatched ]",
    "u16 len(a)": "len of unknown brackets",
    "u16 $x": "$x is not captured before this line",
    "$x": "$x is not captured before this line",
    "??": "are valid in answers",
    "...": "are valid in answers",
    "u32 ?x": "are valid in answers",
    "**": "is a hidden byte",
    "repeat x { }": "invalid count 'x'",
    "repeat 3 01": "repeat N needs",
    "repeat 100001 { 01 }": "use 0 to 100000",
    "repeat 1000 { repeat 1000 { 00 } }": "nested repeats exceed 100000",
    f"repeat 100000 {{ `{'x' * 2000}` }}": "exceeds 134217728 bytes",
    r'"\q"': r"unknown escape \q",
    "bytes 4 x": "bytes N ?name",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_means_nothing_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(NotationError, match=re.escape(REFUSED[text])) as caught:
        bytes_of("01\n" + text)
    assert caught.value.line in (0, 2)


def test_secrets_are_put_back() -> None:
    items = parse(words_of("00 0B ** ** **", 1))
    assert encode(items, {}, secret=b"abc") == b"\x00\x0babc"
    with pytest.raises(NotationError, match="3 hidden bytes, but the secret has 2"):
        encode(items, {}, secret=b"ab")


def test_lines_become_cases_and_steps() -> None:
    cases = read_script(
        "# the Mayfly document's way: no arrows\nCA FE  # magic\n01\n\n02\n"
        "== second\nSource: somewhere, [ brackets and all\n> u8 len [\n>  01 02\n> ]\n< 03\n--\n< 04\nclose\nnothing 20ms\n"
    )
    assert [case.name for case in cases] == ["", "second"]
    first, second = cases
    assert [encode(step.items, {}) for step in first.steps if isinstance(step, Send)] == [b"\xca\xfe\x01", b"\x02"]
    assert [type(step) for step in second.steps] == [Send, Expect, Expect, ExpectClose, ExpectNothing]
    assert not first.expects
    assert second.expects


def test_two_cases_of_one_name_are_refused() -> None:
    with pytest.raises(NotationError, match="duplicate case 'a'"):
        read_script("== a\n> 01\n== a\n> 02")


# The tests' own vectors, each read by the reader that its dialect's tests have.
DIALECTS = ("cursus", "flux", "kafka", "mayfly", "mlog", "rustlog")
FILES = [(dialect, path) for dialect in DIALECTS for path in sorted((WIRE_TESTS / dialect / "vectors").glob("*.vec"))]


@pytest.mark.parametrize(("dialect", "path"), FILES, ids=lambda value: value if isinstance(value, str) else value.stem)
def test_the_vectors_of_the_tests_are_annotated_hex(dialect: str, path: Path) -> None:
    theirs = importlib.import_module(f"tests.wire.{dialect}.vectors")
    lines = [line[2:] for line in path.read_text("utf-8").splitlines() if line[:2] in ("> ", "< ")]
    assert lines or path.stem in (
        "events",
        "batches",
        "damaged_batches",
        "epochs",
    )  # bytes without a frame begin with =
    for line in lines:
        if dialect == "flux":
            expected = theirs.read_bytes(line)
        elif dialect == "cursus":
            expected = theirs._bytes(theirs._TOKEN.findall(line))
        elif dialect == "mlog":
            expected = theirs._bytes(line)
        else:
            expected = spelled(line)
        assert bytes_of(line) == expected, line
