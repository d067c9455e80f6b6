# ruff: noqa: PLC0415 - pyarrow is an optional, heavy dependency: imported only for columns
"""Batches to Arrow columns.

pyarrow is imported only when a function is called: a reader of plain records does not need it (`pip install
braidlog[arrow]`).
Invariant: the schema is the same for every call with the same columns, regardless of the data.

The types are those Spark expects of a Python data source, name for name, so that a batch is passed to Spark
unchanged:

| column    | type                                              | null                                     |
|-----------|---------------------------------------------------|------------------------------------------|
| offset    | int64                                             | never                                    |
| timestamp | timestamp[us, tz=UTC]: Spark has no milliseconds | a time that microseconds cannot hold |
| key       | binary                                            | a null key                               |
| value     | binary                                            | a null value                             |
| headers   | list<element: struct<key: string, value: binary>> | none, as Spark's own Kafka connector has |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from braidlog.codec.batch.header import Buffer, iter_batches
from braidlog.codec.batch.read_committed import AbortedRange, visible
from braidlog.codec.batch.records import append_to_columns
from braidlog.codec.batch.records_section import INT64_MAX
from braidlog.codec.columns.records_to_arrow import BinaryColumn, Columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa


class PieceLimits(NamedTuple):
    """When a piece is full: its limit of rows, and its limit of bytes of keys, values and headers."""

    rows_max: int
    bytes_max: int

    def is_full(self, built: Columns) -> bool:
        size = built.key.size + built.value.size + built.header_key.size + built.header_value.size
        return built.rows >= self.rows_max or size >= self.bytes_max


_MS_FAR = INT64_MAX // 1000

COLUMN_NAMES = ("offset", "timestamp", "key", "value", "headers")


def arrow_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of pieces with these columns, or with all five if None."""
    import pyarrow as pa

    types = {
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": _headers_type(),
    }
    return pa.schema([(name, types[name]) for name in _checked_names(columns)])


class PieceBuilder:
    """Turns whole batches into pieces, which stay small even if the batches are compressed: for a log that is read in
    parts.

    A piece has at most the rows or bytes that `pieces` allows, plus one batch. It can span several parts: otherwise
    small reads would make small pieces. No piece is empty. Each piece comes with whether its times are the log's own.
    A time that microseconds cannot hold is null: one record that claims the year 300,000 must not stop the reader of
    all others.
    """

    def __init__(
        self, columns: Sequence[str], pieces: PieceLimits, *, end_offset: int, decompressed_bytes_max: int
    ) -> None:
        self._names = _checked_names(columns)
        self._pieces = pieces
        self._end_offset = end_offset
        self._decompressed_bytes_max = decompressed_bytes_max
        self._built = _columns(self._names)
        self._append_time = False

    def add(
        self, data: Buffer, start_offset: int, aborted: Sequence[AbortedRange] = ()
    ) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Yield the pieces that became full by this data: batches, or blocks of columns."""
        batches = ((data, at, header) for at, header in iter_batches(data, blocks=True))
        for _, position, header in visible(batches, aborted):
            if self._pieces.is_full(self._built) or header.has_append_time is not self._append_time:
                yield from self.flush()
            self._append_time = header.has_append_time
            append_to_columns(
                self._built,
                data,
                position,
                header,
                decompressed_bytes_max=self._decompressed_bytes_max,
                start_offset=start_offset,
                end_offset=self._end_offset,
            )

    def flush(self) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Yield the last piece, unless it is empty."""
        built, self._built = self._built, _columns(self._names)
        if built.rows:
            yield _record_batch(built, self._names), self._append_time


def _columns(names: Sequence[str]) -> Columns:
    return Columns(want_key="key" in names, want_value="value" in names, want_headers="headers" in names)


def _record_batch(built: Columns, names: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    built.finish()
    arrays = [_array(built, name) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))


def _checked_names(columns: Sequence[str] | None) -> tuple[str, ...]:
    names = COLUMN_NAMES if columns is None else tuple(columns)
    unknown = [name for name in names if name not in COLUMN_NAMES]
    if unknown or len(set(names)) != len(names):
        raise ValueError(f"columns must be some of {', '.join(COLUMN_NAMES)}, each once; not {', '.join(names)}")
    return names


def _headers_type() -> pa.DataType:
    import pyarrow as pa

    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.list_(pa.field("element", pair))


def _array(built: Columns, name: str) -> pa.Array:
    import pyarrow as pa

    match name:
        case "offset":
            return pa.Array.from_buffers(pa.int64(), built.rows, [None, pa.py_buffer(built.offsets)])
        case "timestamp":
            return _timestamps(built)
        case "key":
            return _binary(built.key, pa.binary())
        case "value":
            return _binary(built.value, pa.binary())
        case _:
            return _headers(built)


def _timestamps(built: Columns) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    milliseconds = pa.Array.from_buffers(
        pa.timestamp("ms", tz="UTC"), built.rows, [None, pa.py_buffer(built.timestamps)]
    )
    try:
        return milliseconds.cast(pa.timestamp("us", tz="UTC"))
    except pa.ArrowInvalid:
        # A client may send any 64-bit millisecond; microseconds reach no further than the year 294247.
        ticks = milliseconds.cast(pa.int64())
        near = pc.and_(pc.less_equal(ticks, _MS_FAR), pc.greater_equal(ticks, -_MS_FAR))
        return pc.if_else(near, milliseconds, None).cast(pa.timestamp("us", tz="UTC"))


def _binary(column: BinaryColumn, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    validity = pa.py_buffer(column.validity) if column.nulls else None
    buffers = [validity, pa.py_buffer(column.ends), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, column.rows, buffers, null_count=column.nulls)


def _headers(built: Columns) -> pa.Array:
    import pyarrow as pa

    lists = built.header_lists
    kind = _headers_type()
    pairs = pa.Array.from_buffers(
        kind.value_type,
        lists.size,
        [None],
        null_count=0,
        children=[_binary(built.header_key, pa.string()), _binary(built.header_value, pa.binary())],
    )
    validity = pa.py_buffer(lists.validity) if lists.nulls else None
    return pa.Array.from_buffers(
        kind, lists.rows, [validity, pa.py_buffer(lists.ends)], null_count=lists.nulls, children=[pairs]
    )
