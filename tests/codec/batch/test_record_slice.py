"""Some records of a section, found by both twins alike, and as one walks the records would find them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.twins import load_plain, outcome

from braidlog.codec.batch import record_slice as compiled
from braidlog.codec.batch.header import read_header
from braidlog.codec.batch.records import decode_batch, encode_batch, select_batch, slice_batch
from braidlog.codec.batch.records_section import INT64_MIN, iter_records
from braidlog.codec.compression import Compression
from braidlog.codec.errors import ProtocolError

PLAIN = load_plain("codec/batch/record_slice")
MANY = 1 << 30


def section_of(values: list[bytes], timestamps: list[int] | None = None) -> bytes:
    return encode_batch(values, timestamps=timestamps, base_timestamp=0)[61:]


@given(
    st.lists(st.tuples(st.binary(max_size=200), st.integers(-5, 5)), min_size=1, max_size=30),
    st.integers(-2, 32),
    st.integers(-6, 6),
    st.integers(1, 40),
    st.integers(0, 2000),
)
def test_both_twins_find_what_a_walk_finds(
    records: list[tuple[bytes, int]], start: int, since: int, records_max: int, bytes_max: int
) -> None:
    section = section_of([value for value, _ in records], [time for _, time in records])
    asked: dict[str, Any] = {
        "start_delta": start,
        "start_timestamp": since,
        "records_max": records_max,
        "bytes_max": bytes_max,
    }
    found = compiled.slice_records(section, len(records), len(records) - 1, 0, **asked)
    assert tuple(found) == tuple(PLAIN.slice_records(section, len(records), len(records) - 1, 0, **asked))
    spans = list(iter_records(section, len(records), len(records) - 1))
    first = next((s for s in spans if s.offset_delta >= start and s.timestamp_delta >= since), None)
    if first is None:
        assert (found.count, found.next_delta) == (0, -1)
        return
    assert found.start == first.start
    taken = [span for span in spans if first.start <= span.start < found.end]
    assert len(taken) == found.count
    assert len(taken) == 1 or (len(taken) <= records_max and found.end - found.start <= bytes_max)
    after = [span for span in spans if span.start >= found.end]
    assert found.next_delta == (after[0].offset_delta if after else -1)
    if after:
        assert len(taken) == records_max or after[0].end - found.start > bytes_max, "one more would have fitted"


@given(st.integers(0, 60), st.integers(0, 255))
def test_both_twins_refuse_the_same_sections(at: int, byte: int) -> None:
    section = bytearray(section_of([b"one", b"two", b"three", b"four"]))
    section[at % len(section)] = byte
    asked = {"start_delta": 2, "records_max": 1, "bytes_max": 9}
    ours = outcome(lambda: tuple(compiled.slice_records(bytes(section), 4, 3, 0, **asked)))
    theirs = outcome(lambda: tuple(PLAIN.slice_records(bytes(section), 4, 3, 0, **asked)))
    assert ours == theirs


@pytest.mark.parametrize("compression", Compression)
def test_a_part_of_a_batch_has_its_offsets_and_times(compression: Compression) -> None:
    values, times = [b"%d" % number for number in range(100)], [1000 + number for number in range(100)]
    batch = encode_batch(values, timestamps=times, base_timestamp=1000, base_offset=500, compression=compression)
    clipped, after = slice_batch(batch, start_offset=540, records_max=3, bytes_max=MANY, decompressed_bytes_max=MANY)
    assert read_header(clipped).compression == 0
    rows = decode_batch(clipped, decompressed_bytes_max=0)
    assert [(row[0], row[1], row[3]) for row in rows] == [(540 + n, 1040 + n, b"%d" % (40 + n)) for n in range(3)]
    assert after == 543
    clipped, after = slice_batch(
        batch, start_offset=0, start_timestamp_ms=1098, records_max=9, bytes_max=MANY, decompressed_bytes_max=MANY
    )
    assert [row[0] for row in decode_batch(clipped, decompressed_bytes_max=0)] == [598, 599]
    assert after == 600


def test_a_batch_that_compaction_thinned() -> None:
    batch = encode_batch([b"%d" % number for number in range(10)], base_timestamp=0, base_offset=100)
    keep = [number in {2, 7} for number in range(10)]
    thin = select_batch(batch, 0, read_header(batch), keep, decompressed_bytes_max=MANY)
    clipped, after = slice_batch(thin, start_offset=101, records_max=1, bytes_max=0, decompressed_bytes_max=0)
    assert [row[0] for row in decode_batch(clipped, decompressed_bytes_max=0)] == [102]
    assert after == 107
    clipped, after = slice_batch(thin, start_offset=108, records_max=1, bytes_max=0, decompressed_bytes_max=0)
    assert decode_batch(clipped, decompressed_bytes_max=0) == []
    assert after == 110


def test_a_damaged_batch_is_not_looked_into() -> None:
    batch = encode_batch([b"x"], base_timestamp=0)
    with pytest.raises(ProtocolError, match="CRC"):
        slice_batch(batch[:-1] + b"\xff", start_offset=0, records_max=1, bytes_max=1, decompressed_bytes_max=1)


def test_all_times_are_late_enough_by_default() -> None:
    section = section_of([b"x"], [INT64_MIN // 2])
    assert compiled.slice_records(section, 1, 0, 0, start_delta=0, records_max=1, bytes_max=1).count == 1
