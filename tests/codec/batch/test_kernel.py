# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The kernel's two twins: equal in bytes, values and errors, and held to the rule in `section`."""

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from release.wheels import compiled_modules
from tests.codec import strategies
from tests.codec.twins import COMPILED, PLAIN, buffers, load_plain, outcome, require_compiled

from braidlog.codec.batch import records_section
from braidlog.codec.errors import ProtocolError
from braidlog.codec.varint import encode_varint

SETUP = compiled_modules((Path(__file__).parents[3] / "setup.py").read_text(encoding="utf-8"))
TWINS = [pytest.param(COMPILED, id="built"), pytest.param(PLAIN, id="plain")]


@pytest.fixture(autouse=True, scope="module")
def _both_twins():
    require_compiled()


def rows_by_the_rule(records, count, base_offset, last_offset_delta, base_timestamp):
    spans = records_section.iter_records(records, count, last_offset_delta, base_timestamp=base_timestamp)
    return [
        (base_offset + s.offset_delta, base_timestamp + s.timestamp_delta, s.key, s.value, s.headers) for s in spans
    ]


def ask_everything(twin, records, count, last_offset_delta, base_timestamp, keep):
    """Every reader's answer to the same bytes."""

    def arrow(**limits):
        columns = twin.Columns()
        columns.append(records, count, 7, last_offset_delta, base_timestamp, **limits)
        columns.append(records, count, 7000, last_offset_delta, base_timestamp, 99)
        return buffers(columns)

    return {
        "decode": outcome(lambda: twin.decode_records(records, count, 7, last_offset_delta, base_timestamp)),
        "stamped": outcome(lambda: twin.decode_records(records, count, 7, last_offset_delta, base_timestamp, 5)),
        "scan": outcome(lambda: twin.scan_keys(records, count, last_offset_delta)),
        "check": outcome(lambda: twin.check_records(records, count, last_offset_delta, base_timestamp)),
        "dense": outcome(lambda: twin.check_records(records, count, last_offset_delta, base_timestamp, dense=True)),
        "select": outcome(lambda: twin.select_records(records, count, last_offset_delta, keep)),
        "arrow": outcome(arrow),
        "arrow of some": outcome(lambda: arrow(start_offset=8, end_offset=10)),
    }


def assert_sound(answers):
    """Values, or ProtocolError: bytes from elsewhere never raise anything else."""
    for name, answer in answers.items():
        if isinstance(answer, tuple) and answer and isinstance(answer[0], type):
            assert answer[0] is ProtocolError, (name, answer)


def compare(records, count, last_offset_delta, base_timestamp=0):
    keep = [index % 2 == 0 for index in range(max(0, min(count, 100_000)))]
    if len(keep) != count:
        keep = []
    built = ask_everything(COMPILED, records, count, last_offset_delta, base_timestamp, keep)
    plain = ask_everything(PLAIN, records, count, last_offset_delta, base_timestamp, keep)
    assert built == plain
    if len(keep) == count:
        assert_sound(built)
    rule = outcome(lambda: rows_by_the_rule(records, count, 7, last_offset_delta, base_timestamp))
    assert built["decode"] == rule
    return built


def test_the_twins_are_what_they_say():
    assert COMPILED.COMPILED
    assert not PLAIN.COMPILED
    assert all(file.endswith((".so", ".pyd")) for file in COMPILED.files)


def test_the_plain_twin_needs_no_cython(monkeypatch):
    monkeypatch.setitem(sys.modules, "cython", None)
    twin = load_plain("codec/batch/kernel")
    assert twin.encode_records([b"a"], None, None, None, 0) == bytes.fromhex("0e0000000102 6100")


@pytest.mark.parametrize("module", SETUP)
def test_no_compiled_module_needs_cython(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "cython", None)
    assert load_plain(module.removeprefix("braidlog/")).cython.__name__ == "braidlog.codec.cython_shim"


@given(strategies.columns())
def test_columns_come_back(columns):
    values, keys, timestamps, headers, base = columns
    count = len(values)
    encoded = COMPILED.encode_records(values, keys, timestamps, headers, base)
    assert encoded == PLAIN.encode_records(values, keys, timestamps, headers, base)
    answers = compare(encoded, count, count - 1, base)
    assert answers["decode"] == [
        (
            7 + index,
            base if timestamps is None else timestamps[index],
            None if keys is None else keys[index],
            value,
            () if headers is None else headers[index],
        )
        for index, value in enumerate(values)
    ]
    assert answers["check"] == (base if timestamps is None else max(timestamps))
    assert answers["dense"] == answers["check"]
    kept, kept_count, _ = answers["select"]
    # What was kept has gaps now, and is still a section.
    again = compare(kept, kept_count, count - 1, base)
    assert again["decode"] == answers["decode"][::2]
    if count > 1:
        assert again["dense"][0] is ProtocolError


@given(strategies.columns(), st.data())
@settings(max_examples=300)
def test_damaged_sections(columns, data):
    values, keys, timestamps, headers, base = columns
    encoded = bytearray(COMPILED.encode_records(values, keys, timestamps, headers, base))
    for _ in range(data.draw(st.integers(1, 3))):
        # The first bytes of the section are structure; further in there is more value than anything else.
        place = data.draw(st.one_of(st.integers(0, min(24, len(encoded) - 1)), st.integers(0, len(encoded) - 1)))
        match data.draw(st.sampled_from(["set", "flip", "cut", "insert"])):
            case "set":
                encoded[place] = data.draw(st.sampled_from([0x00, 0x01, 0x02, 0x03, 0x7F, 0x80, 0x81, 0xFF]))
            case "flip":
                encoded[place] ^= 1 << data.draw(st.integers(0, 7))
            case "cut" if len(encoded) > 1:
                del encoded[place]
            case _:
                encoded.insert(place, data.draw(st.integers(0, 255)))
    count = len(values) + data.draw(st.sampled_from([0, 0, 0, -1, 1]))
    compare(bytes(encoded), count, len(values) - 1, base)
    compare(memoryview(encoded), count, len(values) - 1, base)


@given(st.binary(max_size=60), st.integers(-1, 9), st.integers(0, 12), strategies.INT64)
@settings(max_examples=300)
def test_garbage(records, count, last_offset_delta, base_timestamp):
    compare(records, count, last_offset_delta, base_timestamp)


def field(number):
    return encode_varint(number) if isinstance(number, int) else bytes.fromhex(number)


@given(
    st.lists(
        st.tuples(*[st.sampled_from([0, 1, 2, -1, -2, 3, "8100", "8000", "808000", "ffffffff0f", "feffffff0f"])] * 5),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 3),
)
@settings(max_examples=500)
def test_records_made_of_odd_fields(made, last_offset_delta):
    """Lengths of the right record around fields of any number: damage that reaches the innermost checks."""
    records = b""
    for timestamp, offset, key, value, headers in made:
        body = b"\x00" + b"".join(field(number) for number in (timestamp, offset, key))
        body += b"k" * (key if isinstance(key, int) and key > 0 else 0) + field(value)
        body += b"v" * (value if isinstance(value, int) and value > 0 else 0) + field(headers)
        if isinstance(headers, int) and headers > 0:
            body += b"\x02h\x01" * headers
        records += encode_varint(len(body)) + body
    compare(records, len(made), last_offset_delta, 2**63 - 2)


def test_truncated_at_every_length():
    records = COMPILED.encode_records(
        [b"v" * 70, None, b""],
        [b"k", b"k" * 65, None],
        [5, 2**40, 3],
        [(("h", b"1"), ("é", None)), (), ()],
        5,
    )
    assert not isinstance(compare(records, 3, 2, 5)["decode"], tuple)
    for size in range(len(records)):
        for answer in compare(records[:size], 3, 2, 5).values():
            assert answer[0] is ProtocolError
        with pytest.raises(ProtocolError):
            COMPILED.decode_records(records + records[:size] if size else records + b"\x00", 3, 0, 2, 5)


# One record each, by hand: length, attributes, timestamp delta, offset delta, key, value, headers.
# Each breaks one rule, in a way that no other check would find.
MALFORMED = {
    "bytes left over in the record": ("0e 00 00 00 01 01 00 aa", "left over"),
    "a record that ends before its headers": ("0a 00 00 00 01 01 00", "shorter"),
    "timestamp of eleven bytes": ("20 00 ffffffffffffffffff8100 00 01 01 00", "longer"),
    "timestamp wider than 64 bits": ("1e 00 ffffffffffffffffff02 00 01 01 00", "wider"),
    "offset delta of six bytes": ("16 00 00 808080808000 01 01 00", "longer"),
    "offset delta wider than 32 bits": ("14 00 00 8080808010 01 01 00", "wider"),
    "offset delta negative": ("0c 00 00 01 01 01 00", "offset delta -1"),
    "offset delta past the last": ("0c 00 00 02 01 01 00", "offset delta 1"),
    "key length of -2": ("0c 00 00 00 03 01 00", "length -2"),
    "key into the next field": ("0e 00 00 00 08 61 01 00", "length 4"),
    "value length of -2": ("0c 00 00 00 01 03 00", "length -2"),
    "value past the record": ("0c 00 00 00 01 04 00 00", "length 2"),
    "value length of six bytes": ("16 00 00 00 01 808080808000 00", "longer"),
    "header count negative": ("0c 00 00 00 01 01 01", "-1 headers"),
    "header without key": ("10 00 00 00 01 01 02 01 01", "no key"),
    "header key past the record": ("10 00 00 00 01 01 02 04 01", "length 2"),
    "header value of length -2": ("10 00 00 00 01 01 02 00 03", "length -2"),
    "header value past the record": ("10 00 00 00 01 01 02 00 02", "length 1"),
    "record length odd": ("0d 00 00 00 01 01 00", "length -7"),
    "record length past the section": ("0e 00 00 00 01 01 00", "are left"),
    "bytes after the record": ("0c 00 00 00 01 01 00 00", "follow"),
}


@pytest.mark.parametrize(("records", "words"), MALFORMED.values(), ids=MALFORMED)
def test_each_rule(records, words):
    for name, answer in compare(bytes.fromhex(records), 1, 0).items():
        assert answer[0] is ProtocolError, name
        assert re.search(words, answer[1]), answer[1]


def test_numbers_longer_than_needed_are_read():
    # length 9 in two bytes, offset delta 0 in two, key and value -1 in two and three, no headers in two
    records = bytes.fromhex("9600 00 00 8000 8100 818000 8000")
    assert compare(records, 1, 0)["decode"] == [(7, 0, None, None, ())]


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("header_key", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80"])
def test_a_header_key_is_utf8(twin, header_key):
    body = b"\x00\x00\x00\x01\x01\x02" + encode_varint(len(header_key)) + header_key + b"\x01"
    records = encode_varint(len(body)) + body
    for read in (
        lambda: twin.decode_records(records, 1, 0, 0, 0),
        lambda: twin.check_records(records, 1, 0, 0),
        lambda: twin.scan_keys(records, 1, 0),
        lambda: twin.Columns().append(records, 1, 0, 0, 0),
    ):
        with pytest.raises(ProtocolError, match="UTF-8"):
            read()


@pytest.mark.parametrize("twin", TWINS)
def test_counts_are_not_believed(twin):
    for count in (-1, 2, 2**31 - 1, 2**62, 2**70):
        with pytest.raises(ProtocolError, match="do not fit"):
            twin.decode_records(b"\x0c\x00\x00\x00\x01\x01\x00", count, 0, 2**31 - 1, 0)
    # A header count of 2^30 in a record of a few bytes.
    body = b"\x00\x00\x00\x01\x01\x80\x80\x80\x80\x08"
    with pytest.raises(ProtocolError, match="headers do not fit"):
        twin.decode_records(encode_varint(len(body)) + body, 1, 0, 0, 0)


@pytest.mark.parametrize("twin", TWINS)
def test_timestamps_stay_within_64_bits(twin):
    records = twin.encode_records([b""], None, [1], None, 0)
    assert twin.decode_records(records, 1, 0, 0, 2**63 - 2)[0][1] == 2**63 - 1
    for read in (twin.decode_records, twin.Columns().append):
        with pytest.raises(ProtocolError, match="64 bits"):
            read(records, 1, 0, 0, 2**63 - 1)
    with pytest.raises(ProtocolError, match="64 bits"):
        twin.check_records(records, 1, 0, 2**63 - 1)
    with pytest.raises(ProtocolError):
        twin.decode_records(records, 1, 2**63 - 1, 1, 0)


class Sly(int):
    """An int that would run code if it were asked to convert itself."""

    def __index__(self):
        raise AssertionError("must not be called")


UNFIT = {
    "value of str": (["a"], None, None, None, 0),
    "value of bytearray": ([bytearray(b"a")], None, None, None, 0),
    "key of int": ([b"a"], [1], None, None, 0),
    "timestamp of float": ([b"a"], None, [1.5], None, 0),
    "timestamp too wide": ([b"a"], None, [2**63], None, 0),
    "timestamp too far": ([b"a"], None, [2**63 - 1], None, -1),
    "timestamp too far back": ([b"a"], None, [-(2**63)], None, 1),
    "base too wide": ([b"a"], None, None, None, 2**63),
    "fewer keys": ([b"a", b"b"], [b"a"], None, None, 0),
    "more headers": ([b"a"], None, None, [(), ()], 0),
    "headers of list": ([b"a"], None, None, [[("a", b"b")]], 0),
    "header of three": ([b"a"], None, None, [(("a", b"b", b"c"),)], 0),
    "header key of bytes": ([b"a"], None, None, [((b"a", b"b"),)], 0),
    "header key of half a letter": ([b"a"], None, None, [(("\ud800", b"b"),)], 0),
    "header value of str": ([b"a"], None, None, [(("a", "b"),)], 0),
    "second is wrong": ([b"a", b"b"], [b"a", "b"], [1, 2], [(), None], 0),
}


@pytest.mark.parametrize("arguments", UNFIT.values(), ids=UNFIT)
def test_unfit_columns(arguments):
    built = outcome(lambda: COMPILED.encode_records(*arguments))
    assert built == outcome(lambda: PLAIN.encode_records(*arguments))
    assert isinstance(built, tuple)
    assert issubclass(built[0], TypeError | ValueError)


@pytest.mark.parametrize("twin", TWINS)
def test_a_base_timestamp_is_an_int(twin):
    with pytest.raises(TypeError):
        twin.encode_records([b"a"], None, None, None, "0")


@pytest.mark.parametrize("twin", TWINS)
def test_fit_columns_of_other_kinds(twin):
    class Text(bytes):
        __slots__ = ()

    plain = twin.encode_records([b"a", b"b"], [b"k", None], [3, 4], [(), ()], 3)
    assert twin.encode_records((Text(b"a"), b"b"), (b"k", None), (Sly(3), 4), (None, ()), 3) == plain
    assert twin.encode_records([], None, None, None, 0) == b""
    assert twin.decode_records(b"", 0, 0, 0, 0) == []
    assert twin.check_records(b"", 0, 0, 0) is None
    assert twin.select_records(plain, 2, 1, [False, False]) == (b"", 0, None)


@pytest.mark.parametrize("count", [63, 64, 65, 8191, 8192, 8193, 70_000])
def test_many_records(count):
    values = [b"%d" % index if index % 3 else None for index in range(count)]
    encoded = COMPILED.encode_records(values, None, None, None, 0)
    assert encoded == PLAIN.encode_records(values, None, None, None, 0)
    assert [row[3] for row in COMPILED.decode_records(encoded, count, 0, count - 1, 0)] == values
    assert PLAIN.decode_records(encoded, count, 0, count - 1, 0) == COMPILED.decode_records(
        encoded, count, 0, count - 1, 0
    )
