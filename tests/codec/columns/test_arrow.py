# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Arrow columns against the rows of the same batches, and the schema that Spark expects."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec import strategies
from tests.codec.twins import PLAIN

from braidlog.codec.batch.header import empty_batch, read_header, seal, with_append_time
from braidlog.codec.batch.read_committed import AbortedRange
from braidlog.codec.batch.records import control_batch, decode_batch, encode_batch
from braidlog.codec.columns import arrow
from braidlog.codec.columns.arrow import PieceBuilder, PieceLimits, arrow_schema
from braidlog.codec.compression import Compression
from braidlog.codec.errors import ProtocolError

BOUND = 1 << 20
T = 1_700_000_000_123


@pytest.fixture(params=["built", "plain"])
def twin(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(arrow, "Columns", PLAIN.Columns)


def read(data, start_offset=0, end_offset=2**63 - 1, columns=arrow.COLUMN_NAMES):
    """All of it in one batch."""
    builder = PieceBuilder(columns, PieceLimits(10**9, 10**9), end_offset=end_offset, decompressed_bytes_max=BOUND)
    pieces = [piece for piece, _ in [*builder.add(data, start_offset), *builder.flush()]]
    whole = pa.Table.from_batches(pieces, arrow_schema(columns)).combine_chunks()
    batch = whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_pylist([], arrow_schema(columns))
    batch.validate(full=True)
    return batch


def row_of(offset, timestamp, key, value, headers):
    listed = [{"key": name, "value": content} for name, content in headers] or None
    return {"offset": offset, "timestamp": timestamp * 1000, "key": key, "value": value, "headers": listed}


def rows_of(batch):
    micros = batch.column("timestamp").cast(pa.int64())
    return batch.set_column(1, "timestamp", micros).to_pylist()


def log_of(batches, compression=Compression.NONE):
    data, rows, offset = b"", [], 0
    for values, keys, timestamps, headers, base in batches:
        encoded = encode_batch(
            values,
            keys=keys,
            timestamps=timestamps,
            headers=headers,
            base_timestamp=base,
            base_offset=offset,
            compression=compression,
        )
        rows += decode_batch(encoded, decompressed_bytes_max=BOUND)
        data += encoded
        offset += len(values)
    return data, rows


def tellable(columns):
    limit = 2**63 // 1000 - 10_000
    values, keys, timestamps, headers, base = columns
    base = min(max(base, -limit), limit)
    if timestamps is not None:
        timestamps = [min(max(timestamp, -limit), limit) for timestamp in timestamps]
    return values, keys, timestamps, headers, base


@pytest.mark.usefixtures("twin")
@given(
    st.lists(strategies.columns().map(tellable), max_size=4),
    st.sampled_from(Compression),
    st.integers(0, 80),
    st.integers(0, 120),
)
@settings(max_examples=30, deadline=None)
def test_columns_are_the_rows(batches, compression, start, length):
    data, rows = log_of(batches, compression)
    assert rows_of(read(data)) == [row_of(*row) for row in rows]
    part = read(data, start_offset=start, end_offset=start + length)
    assert rows_of(part) == [row_of(*row) for row in rows if start <= row[0] < start + length]


def test_the_schema_is_sparks():
    assert read(b"").schema == arrow_schema()
    expected = [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        (
            "headers",
            pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ),
    ]
    assert arrow_schema() == pa.schema(expected)
    assert arrow_schema().field("headers").type.value_field.name == "element"


@pytest.mark.usefixtures("twin")
def test_what_is_no_data_is_left_out():
    first = encode_batch([b"a", b"b"], base_timestamp=T, base_offset=3)
    marker = control_batch(base_offset=5, leader_epoch=0, producer_id=1, producer_epoch=0, commit=True, timestamp_ms=T)
    gap = empty_batch(6, 9, 0, T)
    last = with_append_time(first, 0, read_header(first)._replace(base_offset=9), T + 50)
    batch = read(first + marker + gap + last)
    assert batch.column("offset").to_pylist() == [3, 4, 9, 10]
    assert batch.column("timestamp").to_pylist()[2] == datetime.fromtimestamp((T + 50) / 1000, UTC)


@pytest.mark.usefixtures("twin")
def test_columns_asked_for():
    data = encode_batch([b"a"], keys=[b"k"], base_timestamp=T)
    batch = read(data, columns=["value", "offset"])
    assert batch.schema == arrow_schema(["value", "offset"])
    assert batch.to_pylist() == [{"value": b"a", "offset": 0}]
    for wrong in (["values"], ["key", "key"]):
        with pytest.raises(ValueError, match="columns must be"):
            read(data, columns=wrong)


@pytest.mark.usefixtures("twin")
def test_a_timestamp_beyond_microseconds():
    for timestamp in (2**63 - 1, -(2**63)):
        near = encode_batch([b"b"], base_timestamp=T, base_offset=1)
        batch = read(encode_batch([b"a"], base_timestamp=timestamp) + near)
        assert batch.column("timestamp").to_pylist() == [None, datetime.fromtimestamp(T / 1000, UTC)]


@pytest.mark.usefixtures("twin")
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damage_under_a_checksum_that_holds(data):
    batch = bytearray(
        encode_batch([b"a", None], keys=[None, b"k"], headers=[(("h", b"1"), ("i", None)), ()], base_timestamp=T)
    )
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(seal(batch))
    except ProtocolError:
        return


def test_truncated_at_every_length():
    data = encode_batch([b"a", b"b"], base_timestamp=T)
    for size in range(1, len(data)):
        with pytest.raises(ProtocolError):
            read(data[:size])


# -- in pieces ---------------------------------------------------------------------------------------------------------


def pieces_of(parts, rows_max, bytes_max, aborted=(), start=0, end=2**62, columns=arrow.COLUMN_NAMES):
    builder = PieceBuilder(columns, PieceLimits(rows_max, bytes_max), end_offset=end, decompressed_bytes_max=BOUND)
    return [piece for part in parts for piece in builder.add(part, start, aborted)] + list(builder.flush())


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8),
    st.integers(1, 60),
    st.integers(1, 4000),
    st.integers(0, 100),
    st.integers(0, 100),
)
@settings(max_examples=60)
def test_pieces_together_are_the_whole(sizes, rows_max, bytes_max, start, rows):
    parts, offset = [], 0
    for size in sizes:
        parts.append(encode_batch([b"v" * 50] * size, base_timestamp=T, base_offset=offset))
        offset += size
    data = b"".join(parts)
    cut = len(parts) // 2
    parts = [b"".join(parts[:cut]), *parts[cut:]]
    found = [piece for piece, _ in pieces_of(parts, rows_max, bytes_max, start=start, end=start + rows)]
    whole = read(data, start_offset=start, end_offset=start + rows)
    assert [row for piece in found for row in rows_of(piece)] == rows_of(whole)
    for piece in found:
        assert 0 < piece.num_rows < rows_max + max(sizes)
        assert piece.column("value").nbytes < bytes_max + 70 * max(sizes) + 100


def test_pieces_do_not_mix_times_and_hide_what_is_hidden():
    data, offset = b"", 0
    for at in range(6):
        batch = encode_batch(
            [b"%d" % at] * 2, base_timestamp=T, base_offset=offset, producer_id=7, transactional=at == 1
        )
        data += with_append_time(batch, 0, read_header(batch), T + at) if at in (2, 3) else batch
        offset += 2
    marker = control_batch(
        base_offset=offset, leader_epoch=0, producer_id=1, producer_epoch=0, commit=True, timestamp_ms=T
    )
    found = pieces_of([data + marker], 1000, 10**6, [AbortedRange(2, 7, 3)], columns=["value", "offset"])
    assert [(piece.column("value").to_pylist(), log_time) for piece, log_time in found] == [
        ([b"0", b"0"], False),
        ([b"2", b"2", b"3", b"3"], True),
        ([b"4", b"4", b"5", b"5"], False),
    ]
    assert pieces_of([b""], 1, 1) == []
