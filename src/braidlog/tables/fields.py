"""Converts fields of JSON objects to columns.

A column never changes its type, and no two columns differ only in case: Spark would treat them as one. A value that
does not fit its column is null there; the column `value` keeps every record's bytes. Does not handle: tables, files.

| in JSON                    | column  | also fits            |
|----------------------------|---------|----------------------|
| true, false                | boolean |                      |
| a whole number, 64 bits    | long    |                      |
| another number             | double  | whole numbers        |
| a string                   | string  |                      |
| a list, an object          | string  | its JSON             |

If the rows of one export have both integers and other numbers in a new field, its column is a double. A field with
the name of a standard column gets a leading underscore.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from braidlog.codec.columns import json_to_arrow
from braidlog.tables.segments import SCHEMA

FIELDS_MAX = 500
"""Maximum columns of one table: a topic that uses data as field names would create millions."""
NAME_CHARS_MAX = 200
_INT64 = range(-(2**63), 2**63)
_DOUBLE_MAX = 2.0**1000
"""The bound of whole numbers stored as doubles: below it all are exact."""
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
Row = dict[str, Any]


def objects(values: Iterable[bytes | None]) -> list[Row | None]:
    """Parse each value as a JSON object; None if it is not one."""
    parsed: list[Row | None] = []
    for value in values:
        try:
            row = None if value is None else _decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            row = None
        parsed.append(row if isinstance(row, dict) else None)
    return parsed


def column_of(field: str) -> str:
    """Return the column name of a field."""
    return f"_{field}" if field.lower() in SCHEMA.names else field


def note_new(known: pa.Schema, kinds: dict[str, pa.DataType], rows: Iterable[Row | None]) -> None:
    """Add to `kinds` the columns of new fields that have a value in these rows."""
    taken = {name.lower() for name in (*known.names, *kinds)}
    settled: set[str] = set()
    """Fields whose column type is final."""
    for row in rows:
        if row is None or row.keys() <= settled:
            continue
        for field, value in row.items():
            if field in settled or (kind := _kind(value)) is None:
                continue
            column = column_of(field)
            if column not in kinds:
                if column.lower() in taken or not is_name(column) or len(taken) >= FIELDS_MAX:
                    settled.add(field)
                    continue
                taken.add(column.lower())
                kinds[column] = kind
            elif {kinds[column], kind} == {pa.int64(), pa.float64()}:
                kinds[column] = pa.float64()
            if kinds[column] != pa.int64():  # an integer column may still become a double
                settled.add(field)


def is_name(column: str) -> bool:
    """Return whether a column can have this name."""
    return 0 < len(column) <= NAME_CHARS_MAX and column.isprintable() and "." not in column


def parse(values: pa.Array, schema: pa.Schema) -> list[pa.Array] | None:
    """Return the result of `columns` without creating Python objects: in C, or with Arrow's parser without the
    compiled kernel. Returns None if the two could differ: for a field without a column, a value that does not fit its
    column, or a value that is not a JSON object."""
    names = [_field_of(each.name) for each in schema]
    if not names or len({*names}) < len(names):
        return None
    return (_in_c if json_to_arrow.COMPILED else _by_arrow)(values, names, schema)


def _in_c(values: pa.Array, names: list[str], schema: pa.Schema) -> list[pa.Array] | None:
    keys = [name.encode("utf-8", "surrogatepass") for name in names]
    buffers = values.buffers()
    if buffers[2] is None or any(b'"' in key or b"\\" in key for key in keys):
        return None
    kinds = bytes(_KINDS[each] for each in schema.types)
    try:
        parts = json_to_arrow.read_objects(tuple(buffers), values.offset, len(values), keys, kinds, _as_text)
        if parts is None:
            return None
        filled, has_more_than_ascii = parts
        if has_more_than_ascii:
            values.cast(pa.string())  # raises if it is not UTF-8
    except (pa.ArrowException, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return [
        pa.Array.from_buffers(
            kind,
            len(values),
            [pa.py_buffer(valid), *(pa.py_buffer(each) for each in (ends, data) if each is not None)],
            nulls,
        )
        for kind, (valid, nulls, ends, data) in zip(schema.types, filled, strict=True)
    ]


def _as_text(nested: bytes) -> bytes:
    return _encode(_decode(nested))


def _by_arrow(values: pa.Array, names: list[str], schema: pa.Schema) -> list[pa.Array] | None:
    # Wrap each value in an object: an early end of a value changes the number of objects, which is detected.
    lines = pc.binary_join_element_wise(b'{"v":', values.fill_null(b"null"), b"}\n", b"")
    data = lines.buffers()[2]
    target = pa.schema([("v", pa.struct([*map(pa.field, names, schema.types)]))])
    try:
        parsed = pj.read_json(
            pa.BufferReader(data),
            pj.ReadOptions(use_threads=False, block_size=data.size + 1),
            pj.ParseOptions(target, unexpected_field_behavior="error"),
        )
        values.cast(pa.string())  # the parser accepts invalid UTF-8
    except pa.ArrowException:
        return None
    if parsed.num_rows != len(values):
        return None
    arrays = parsed["v"].combine_chunks().flatten()
    if parsed["v"].null_count != values.null_count:
        return None  # a JSON null is not an object
    # Arrow accepts NaN, which JSON does not have, and numbers beyond the range of a double.
    doubles = [array for array in arrays if array.type == pa.float64()]
    if not all(pc.all(pc.less(pc.abs(double), _DOUBLE_MAX)).as_py() in (True, None) for double in doubles):
        return None
    return arrays  # type: ignore[no-any-return] # Arrow has no types


def columns(rows: Sequence[Row | None], schema: pa.Schema) -> list[pa.Array]:
    """Return the rows' values for each field of `schema`."""
    return [_column(rows, field) for field in schema]


def _column(rows: Sequence[Row | None], field: pa.Field) -> pa.Array:
    own = _field_of(field.name)
    fit = _FITS[field.type]
    return pa.array(
        [None if row is None or (value := row.get(own)) is None else fit(value) for row in rows], field.type
    )


def _field_of(column: str) -> str:
    """Return the field of a table's column: a leading underscore may have been added to avoid a name conflict."""
    return column[1:] if column.startswith("_") and column[1:].lower() in SCHEMA.names else column


def _kind(value: Any) -> pa.DataType | None:  # noqa: ANN401 - any JSON value
    match value:
        case None:
            return None
        case bool():
            return pa.bool_()
        case int():
            return pa.int64() if value in _INT64 else pa.float64()
        case float():
            return pa.float64()
        case _:
            return pa.string()


def _fit_bool(value: Any) -> bool | None:  # noqa: ANN401 - as above
    return value if isinstance(value, bool) else None


def _fit_int(value: Any) -> int | None:  # noqa: ANN401 - as above
    return value if type(value) is int and value in _INT64 else None


def _fit_float(value: Any) -> float | None:  # noqa: ANN401 - as above
    if type(value) is float:
        return value
    return float(value) if type(value) is int and abs(value) < _DOUBLE_MAX else None


def _fit_text(value: Any) -> str | None:  # noqa: ANN401 - as above
    if isinstance(value, str):
        return value
    return _encode(value).decode() if isinstance(value, dict | list) else None


_FITS = {pa.bool_(): _fit_bool, pa.int64(): _fit_int, pa.float64(): _fit_float, pa.string(): _fit_text}
_KINDS = {
    pa.bool_(): json_to_arrow.BOOLEAN,
    pa.int64(): json_to_arrow.LONG,
    pa.float64(): json_to_arrow.DOUBLE,
    pa.string(): json_to_arrow.TEXT,
}
OF_JSON = frozenset(_FITS)
