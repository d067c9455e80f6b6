# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Batches as blocks of columns: both twins write the same, what is read of a block is what its batches hold, and none that
lies is believed."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec.twins import COMPILED, PLAIN, buffers, load_plain, outcome, require_compiled

from braidlog.codec.batch.header import (
    BLOCK_MAGIC,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    check_crc,
    empty_batch,
    iter_batches,
    read_header,
    seal,
    with_append_time,
)
from braidlog.codec.batch.records import append_to_columns, control_batch, encode_batch, select_batch
from braidlog.codec.batch.records_section import INT64_MAX
from braidlog.codec.columns import column_blocks as compiled
from braidlog.codec.compression import Compression
from braidlog.codec.errors import ProtocolError

PLAIN_BLOCKS = load_plain("codec/columns/column_blocks")
WRITERS = (compiled, PLAIN_BLOCKS)
TWINS = [pytest.param(COMPILED, id="built"), pytest.param(PLAIN, id="plain")]
MANY = 1 << 30
BYTES = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=2).map(tuple)
RECORDS = st.lists(st.tuples(BYTES, BYTES, st.integers(-(2**40), 2**40), HEADERS), min_size=1, max_size=12)
BATCHES = st.lists(
    st.tuples(RECORDS, st.sampled_from(["plain", "plain", "thin", "empty", "stamped"]), st.integers(0, 3)),
    min_size=1,
    max_size=6,
)


@pytest.fixture(autouse=True, scope="module")
def _both_twins():
    require_compiled()


def batch_of(records: list[tuple[Any, ...]], **fields: Any) -> bytes:
    keys, values, times, headers = (list(column) for column in zip(*records, strict=True))
    return encode_batch(values, keys=keys, timestamps=times, headers=headers, base_timestamp=7, **fields)


def log_of(drawn: list[tuple[Any, ...]]) -> bytes:
    """Batches of these kinds one after the other, with as many offsets missing before each."""
    parts, at = [], 1000
    for records, kind, missing in drawn:
        at += missing
        batch = batch_of(records, base_offset=at)
        header = read_header(batch)
        if kind == "thin":
            keep = [number % 3 == 0 for number in range(len(records))]
            batch = select_batch(batch, 0, header, keep, decompressed_bytes_max=0)
        elif kind == "stamped":
            batch = with_append_time(batch, 0, header, 77_000 + at)
        elif kind == "empty":
            batch = empty_batch(at, at + len(records), 0, 5)
        parts.append(batch)
        at += len(records)
    return b"".join(parts)


def write(writer: Any, data: bytes, position: int = 0, *, keys: bool = True, size: int = 1 << 20, records: int = 32768):
    """What is written behind four bytes that were there, and where the run ended."""
    out = bytearray(b"here")
    end, stop = writer.write_block(data, position, out, 4, keys=keys, batch_bytes_max=size, batch_records_max=records)
    assert out[:4] == b"here"
    return end, bytes(out[4:stop])


def blocks_of(writer: Any, data: bytes, *, keys: bool) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        at, block = write(writer, data, at, keys=keys)
        found.append(block)
    return found


def columns_of(twin: Any, data: bytes, *, keys: bool, start: int = 0, end: int = INT64_MAX):
    columns = twin.Columns(want_key=keys, want_value=False, want_headers=False)
    for at, header in iter_batches(data, blocks=True):
        append_to_columns(columns, data, at, header, decompressed_bytes_max=0, start_offset=start, end_offset=end)
    return buffers(columns)


@given(BATCHES, st.booleans(), st.integers(990, 1080), st.integers(0, 80))
@settings(max_examples=200)
def test_both_twins_write_the_same_and_all_that_was_asked_for_is_read_of_it(drawn, keys, start, length):
    data = log_of(drawn)
    blocks = blocks_of(compiled, data, keys=keys)
    assert blocks == blocks_of(PLAIN_BLOCKS, data, keys=keys)
    wanted = columns_of(COMPILED, data, keys=keys, start=start, end=start + length)
    for twin in (COMPILED, PLAIN):
        assert columns_of(twin, b"".join(blocks), keys=keys, start=start, end=start + length) == wanted
        assert columns_of(twin, b"".join(blocks), keys=keys) == columns_of(twin, data, keys=keys)
    if keys:  # a reader that wants fewer columns than came
        assert columns_of(COMPILED, b"".join(blocks), keys=False) == columns_of(COMPILED, data, keys=False)


@pytest.mark.parametrize("twin", TWINS)
def test_blocks_and_batches_grow_the_same_columns(twin):
    """Null bits are packed: each begins where the one before ended."""
    parts, mixed, at = [], [], 0
    for number, count in enumerate((3, 5, 8, 1, 16, 7, 20, 9)):
        keys = [None if (number * 7 + each) % 5 == 0 and number % 3 else b"k%d" % each for each in range(count)]
        parts.append(encode_batch([b"v"] * count, keys=keys, base_timestamp=0, base_offset=at))
        mixed.append(parts[-1] if number % 4 == 3 else write(compiled, parts[-1])[1])
        at += count
    assert columns_of(twin, b"".join(mixed), keys=True) == columns_of(twin, b"".join(parts), keys=True)


def test_a_block_says_what_its_batches_say():
    records = [(b"k%d" % at, b"v" * 90, 1000 + at, ()) for at in range(50)]
    data = batch_of(records, base_offset=700, leader_epoch=3) + batch_of(records[:9], base_offset=760, leader_epoch=4)
    found = [write(writer, b"before" + data, 6) for writer in WRITERS]
    for end, block in found:
        assert end == 6 + len(data)
        header = read_header(block, blocks=True)
        check_crc(block, 0, header)
        assert header.size_bytes == len(block) < len(data) // 4
        first = read_header(data)
        told = (BLOCK_MAGIC, 68, 1049, 59)
        names = ("magic", "last_offset_delta", "max_timestamp", "record_count")
        assert header == first._replace(
            batch_length=header.batch_length, crc=header.crc, **dict(zip(names, told, strict=True))
        )
    with pytest.raises(ProtocolError, match="magic"):
        read_header(found[0][1])  # nobody who did not ask takes it for a batch


def changed(batch: bytes, **fields: Any) -> bytes:
    header = read_header(batch)._replace(**fields)
    return seal(bytearray(HEADER.pack(*header) + batch[HEADER_BYTES:]))


ONE = encode_batch([b"v" * 60] * 4, keys=[b"k"] * 4, base_timestamp=0)
TXN = encode_batch([b"v"], base_timestamp=0, producer_id=4, producer_epoch=0, transactional=True)
MARKER = control_batch(base_offset=9, leader_epoch=0, producer_id=4, producer_epoch=0, commit=False, timestamp_ms=6)
ENDS = {
    "compressed": encode_batch([b"v" * 60] * 4, base_timestamp=0, base_offset=9, compression=Compression.LZ4),
    "a marker": MARKER,
    "of a transaction": changed(TXN, base_offset=9),
    "stamped by the log": with_append_time(ONE, 0, read_header(ONE)._replace(base_offset=9), 5),
    "offsets again": changed(ONE, base_offset=3),
    "too many offsets": changed(ONE, base_offset=2**31 - 4),
    "too large": encode_batch([b"v" * 5000], base_timestamp=0, base_offset=9),
    "too many records": encode_batch([b""] * 33, base_timestamp=0, base_offset=9),
    "cut off": changed(ONE, base_offset=9)[:-1],
    "only a part of a header": ONE[:60],
    "of another magic": changed(ONE, base_offset=9)[:16] + b"\x01" + ONE[17:],
    "shorter than a header": changed(ONE, base_offset=9, batch_length=48),
    "more records than offsets": changed(ONE, base_offset=9, record_count=5),
    "more records than bytes": changed(ONE, base_offset=9, record_count=4000, last_offset_delta=4000),
    "fewer than no records": changed(ONE, base_offset=9, record_count=-1),
    "offsets that go back": changed(ONE, base_offset=9, last_offset_delta=-1, record_count=0),
    "before all offsets": changed(ONE, base_offset=-1),
    "behind all offsets": changed(ONE, base_offset=2**63 - 2),
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_run_ends_before_what_is_no_part_of_it(kind):
    for writer in WRITERS:
        end, block = write(writer, ONE + ENDS[kind], size=4000, records=32)
        assert (end, block) == (len(ONE), write(writer, ONE)[1])
    if kind in {"of a transaction", "stamped by the log", "offsets again", "too many offsets"}:
        assert all(write(writer, ENDS[kind])[0] == len(ENDS[kind]) for writer in WRITERS), "it can be one by itself"
    else:
        assert all(write(writer, ENDS[kind], size=4000, records=32) == (0, b"") for writer in WRITERS)


def test_the_most_offsets_that_a_block_may_span():
    data = ONE + changed(ONE, base_offset=2**31 - 5)
    for writer in WRITERS:
        end, block = write(writer, data)
        assert end == len(data)
        assert read_header(block, blocks=True).last_offset_delta == 2**31 - 2


def test_batches_of_transactions_stand_alone():
    data = changed(TXN, base_offset=8) + changed(TXN, base_offset=9)
    assert [write(writer, data)[0] for writer in WRITERS] == [len(TXN)] * 2


@given(st.integers(0, 2 * len(ONE) - 1), st.integers(1, 255))
def test_a_damaged_batch_is_not_sealed_anew(at, flip):
    """Its records may be wrong under a checksum that holds, too."""
    data = bytearray(ONE + changed(ONE, base_offset=4))
    data[at] ^= flip
    found: Any = outcome(lambda: write(compiled, bytes(data)))
    assert found == outcome(lambda: write(PLAIN_BLOCKS, bytes(data)))
    at_header = at % len(ONE)
    if at_header >= 21:  # what the checksum covers: it is refused, or the run ends before it
        assert found[0] is ProtocolError or found[0] in {0, len(ONE)}
    sealed = seal(bytearray(data[: len(ONE)])) + seal(bytearray(data[len(ONE) :]))
    assert outcome(lambda: write(compiled, sealed)) == outcome(lambda: write(PLAIN_BLOCKS, sealed))


@given(st.integers(0, 400), st.integers(0, 255), st.integers(0, 400), st.booleans())
@settings(max_examples=300)
def test_a_block_that_lies_is_refused_by_both_twins_alike(at, byte, cut, gaps):
    """By its own numbers: that its checksum would not hold is not looked at here."""
    data = ONE + changed(ONE, base_offset=9 if gaps else 4)
    _, block = write(compiled, data)
    header = read_header(block, blocks=True)
    body = bytearray(block[HEADER_BYTES:])
    body[at % len(body)] = byte
    changed_body = bytes(body[: cut or None])
    for count in (header.record_count, 0, 7, -1, 2**31 - 1):
        for last in (header.last_offset_delta, 7, 0, -1):
            found = []
            for twin in (COMPILED, PLAIN):
                columns = twin.Columns(want_value=False, want_headers=False)
                told = outcome(lambda: columns.append_block(changed_body, count, 0, last, start_offset=2))  # noqa: B023
                found.append((told, buffers(columns)))
            assert found[0] == found[1]
            if found[0][0] is not None:
                assert found[0][1][0] == 0, "of what was refused nothing is kept"


def block_with(**told: Any) -> bytes:
    """The columns of four rows, from offset 0 on, but for what is told."""
    parts = SimpleNamespace(parts=3, times=[1, 2, 3, 4], deltas=[0, 2, 3, 6], lengths=[1, -1, 0, 2], keys=b"abc")
    vars(parts).update(told)
    numbers = [each.to_bytes(8, "little", signed=True) for each in parts.times]
    numbers += [each.to_bytes(4, "little", signed=True) for each in (*parts.deltas, *parts.lengths)]
    return b"".join((bytes([parts.parts]), *numbers, parts.keys))


@pytest.mark.parametrize("twin", TWINS)
def test_each_rule_of_a_block(twin):
    def told(block: bytes, count: int = 4, base: int = 100, last: int = 6, **wanted: bool) -> Any:
        columns = twin.Columns(**{"want_value": False, "want_headers": False} | wanted)
        found = outcome(lambda: columns.append_block(block, count, base, last))
        return columns if found is None else found[1]  # type: ignore[index]

    sound = told(block_with())
    assert (sound.rows, sound.key.rows, sound.key.nulls) == (4, 4, 1)
    for text, found in {
        "offset deltas do not rise": [
            told(block_with(deltas=[0, 2, 2, 6])),
            told(block_with(deltas=[-1, 2, 3, 6])),
            told(block_with(deltas=[0, 2, 3, 7])),
            told(block_with(), last=5),
        ],
        "key lengths are not those": [
            told(block_with(lengths=[1, -2, 0, 2])),
            told(block_with(lengths=[1, -1, 0, 3])),
            told(block_with(lengths=[1, -1, 0, 1])),
            told(block_with(lengths=[2**31 - 1] * 4)),
        ],
        "cannot stand in": [told(b"\x03"), told(block_with(), count=5), told(block_with(), count=-1)],
        "cannot stand in 34 bytes": [
            told(block_with(parts=0, deltas=[], lengths=[], keys=b"?"), last=3, want_key=False)
        ],
        "do not fill": [told(block_with(), last=2), told(block_with(parts=1, deltas=[]), last=6)],
        "parts that are not known": [told(block_with(parts=7)), told(b"", count=0)],
        "does not fit": [told(block_with(), base=-1), told(block_with(), base=INT64_MAX), told(block_with(), last=-1)],
        "lacks a requested column": [
            told(block_with(parts=0, deltas=[], lengths=[], keys=b""), last=3),
            told(block_with(), want_value=True),
            told(block_with(), want_headers=True),
        ],
    }.items():
        assert [text in str(each) for each in found] == [True] * len(found), (text, found)


@pytest.mark.parametrize("twin", TWINS)
def test_a_column_of_blocks_ends_at_32_bits(twin):
    columns = twin.Columns(want_value=False, want_headers=False)
    columns.append_block(block_with(), 4, 0, 6)
    columns.key.size, size = 2**31 - 20, columns.key.size
    with pytest.raises(OverflowError):
        columns.append_block(block_with(), 4, 10, 6)
    columns.key.size = size
    columns.append_block(block_with(), 4, 10, 6)
    assert columns.rows == 8


def test_a_log_holds_no_block():
    assert BLOCK_MAGIC != MAGIC
    with pytest.raises(ProtocolError, match="magic"):
        list(iter_batches(write(compiled, ONE)[1]))
