"""Records without their values: both twins write the same, and what stays is what there was."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.twins import load_plain, outcome

from braidlog.codec import bare as compiled
from braidlog.codec.batch import APPEND_TIME, HEADER_BYTES, check_crc, read_header, with_append_time
from braidlog.codec.errors import ProtocolError
from braidlog.codec.records import bare_batch, decode_batch, encode_batch, select_batch
from braidlog.codec.section import iter_records

PLAIN = load_plain("bare")
MANY = 1 << 30
BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3).map(tuple)
RECORDS = st.lists(st.tuples(BYTES, BYTES, st.integers(-(2**40), 2**40), HEADERS), min_size=1, max_size=30)


def batch_of(records: list[tuple[Any, ...]], **fields: Any) -> bytes:
    keys, values, times, headers = (list(column) for column in zip(*records, strict=True))
    return encode_batch(values, keys=keys, timestamps=times, headers=headers, base_timestamp=0, **fields)


@given(RECORDS, st.booleans())
def test_both_twins_write_the_same_and_leave_out_what_they_should(records: list[tuple[Any, ...]], keys: bool) -> None:
    section, last = batch_of(records)[HEADER_BYTES:], len(records) - 1
    found = compiled.bare_records(section, len(records), last, 0, keys=keys)
    assert found == PLAIN.bare_records(section, len(records), last, 0, keys=keys)
    assert len(found) <= len(section)
    before = list(iter_records(section, len(records), last))
    for old, new in zip(before, iter_records(found, len(records), last), strict=True):
        assert (new.offset_delta, new.timestamp_delta) == (old.offset_delta, old.timestamp_delta)
        assert (new.key, new.value, new.headers) == (old.key if keys else None, None, ())


@given(st.integers(0, 60), st.integers(0, 255))
def test_both_twins_refuse_the_same_sections(at: int, byte: int) -> None:
    section = bytearray(encode_batch([b"one", b"two", b"three", b"four"], keys=[b"k"] * 4, base_timestamp=0)[61:])
    section[at % len(section)] = byte
    ours = outcome(lambda: compiled.bare_records(bytes(section), 4, 3, 0, keys=True))
    assert ours == outcome(lambda: PLAIN.bare_records(bytes(section), 4, 3, 0, keys=True))
    for count in (0, 3, 5):
        short = outcome(lambda count=count: compiled.bare_records(bytes(section), count, 4, 0, keys=True))  # type: ignore[misc]
        assert short == outcome(lambda count=count: PLAIN.bare_records(bytes(section), count, 4, 0, keys=True))  # type: ignore[misc]


def test_numbers_in_a_longer_form_than_need_be_do_not_grow() -> None:
    """A varint may have leading zeros: the room for what is written is that of what was read."""
    head = b"\x00" + b"\x80\x00" + b"\x80\x00" + b"\x81\x00"
    record = head + b"\x81\x80\x00" + b"\x80\x00"
    section = bytes([len(record) * 2 | 0x80, 0]) + record
    for twin in (compiled, PLAIN):
        assert twin.bare_records(section, 1, 0, 0, keys=True) == b"\x12" + head + b"\x01\x00"
        assert twin.bare_records(section, 1, 0, 0, keys=False) == b"\x0c\x00\x00\x00\x01\x01\x00"


def test_a_batch_keeps_all_that_its_header_says() -> None:
    records = [(b"k%d" % at, b"v" * 90, 1000 + at, (("h", b"x"),)) for at in range(50)]
    plain = batch_of(
        records, base_offset=700, leader_epoch=3, producer_id=9, producer_epoch=2, base_sequence=5, transactional=True
    )
    stamped = with_append_time(plain, 0, read_header(plain), 77_000)
    thin = select_batch(plain, 0, read_header(plain), [at in {2, 40} for at in range(50)], decompressed_bytes_max=MANY)
    for batch in (plain, stamped, thin):
        data = b"before" + batch
        header = read_header(data, 6)
        found = bare_batch(data, 6, header, keys=True)
        small = read_header(found)
        check_crc(found, 0, small)
        assert len(found) == small.size_bytes < len(batch) // 3
        assert small._replace(batch_length=0, crc=0) == header._replace(batch_length=0, crc=0)
        rows = decode_batch(batch, decompressed_bytes_max=0)
        assert decode_batch(found, decompressed_bytes_max=0) == [(*row[:3], None, ()) for row in rows]
    assert read_header(bare_batch(stamped, 0, read_header(stamped), keys=False)).attributes & APPEND_TIME


def test_a_damaged_batch_is_not_sealed_anew() -> None:
    batch = encode_batch([b"x" * 100], base_timestamp=0)
    with pytest.raises(ProtocolError, match="CRC"):
        bare_batch(batch[:-5] + b"\xff" + batch[-4:], 0, read_header(batch), keys=True)
