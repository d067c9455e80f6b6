# ruff: noqa: PLC0415 - pyarrow is an extra, and heavy: only who asks for columns pays for it
"""Batches to Arrow columns.

Knows: the columns' types and how their buffers are put together. Refuses to know: where the batches came
from.
Imports pyarrow only when called: a reader of plain records does not need it (`pip install braidlog[arrow]`).
Invariant: the schema is the same for every call with the same columns, whatever the data holds.

The types are those Spark expects of a Python data source, name for name, so that a batch is handed over as it
is:

| column    | type                                              | null                                     |
|-----------|---------------------------------------------------|------------------------------------------|
| offset    | int64                                             | never                                    |
| timestamp | timestamp[us, tz=UTC]: Spark has no milliseconds  | never                                    |
| key       | binary                                            | a null key                               |
| value     | binary                                            | a null value                             |
| headers   | list<element: struct<key: string, value: binary>> | none, as Spark's own Kafka connector has |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidlog.codec.batch import Buffer, iter_batches
from braidlog.codec.errors import ProtocolError
from braidlog.codec.kernel import BinaryColumn, Columns
from braidlog.codec.records import read_section
from braidlog.codec.section import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

COLUMN_NAMES = ("offset", "timestamp", "key", "value", "headers")


def arrow_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """The schema of `to_arrow` with the same columns."""
    import pyarrow as pa

    types = {
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": _headers_type(),
    }
    return pa.schema([(name, types[name]) for name in _checked_names(columns)])


def to_arrow(
    data: Buffer,
    *,
    start_offset: int | None = None,
    end_offset: int | None = None,
    decompressed_bytes_max: int,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """The records of concatenated whole batches whose offsets are in [start_offset, end_offset), as columns.

    Control batches are left out. `columns` names those wanted, in order; all five when None.
    """
    import pyarrow as pa

    names = _checked_names(columns)
    first = 0 if start_offset is None else start_offset
    end = INT64_MAX if end_offset is None else end_offset
    built = Columns(want_key="key" in names, want_value="value" in names, want_headers="headers" in names)
    for position, header in iter_batches(data):
        if header.is_control or header.last_offset < first or header.base_offset >= end:
            continue
        built.append(
            read_section(data, position, header, decompressed_bytes_max=decompressed_bytes_max),
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp if header.has_append_time else None,
            start_offset=first,
            end_offset=end,
        )
    built.finish()
    schema = arrow_schema(names)
    return pa.RecordBatch.from_arrays([_array(built, name) for name in names], schema=schema)


def _checked_names(columns: Sequence[str] | None) -> tuple[str, ...]:
    names = COLUMN_NAMES if columns is None else tuple(columns)
    unknown = [name for name in names if name not in COLUMN_NAMES]
    if unknown or len(set(names)) != len(names):
        raise ValueError(f"columns are some of {', '.join(COLUMN_NAMES)}, each once; not {', '.join(names)}")
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

    milliseconds = pa.Array.from_buffers(
        pa.timestamp("ms", tz="UTC"), built.rows, [None, pa.py_buffer(built.timestamps)]
    )
    try:
        return milliseconds.cast(pa.timestamp("us", tz="UTC"))
    except pa.ArrowInvalid as error:
        # A client may claim any 64-bit millisecond; the year 294247 is as far as microseconds reach.
        raise ProtocolError("a timestamp is too far away to be told in microseconds") from error


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
