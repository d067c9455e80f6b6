"""Columns of the fields that JSON objects have.

Knows: which type a field gets when it is first seen, what fits a type. Refuses to know: tables, files.
Invariants: a column never changes its type, and no two differ in case only: Spark would take them for one. What does not fit its
column is null there; `value` has every record's bytes as they are, so that nothing is lost by that.

| in JSON                    | column  | also fits            |
|----------------------------|---------|----------------------|
| true, false                | boolean |                      |
| a whole number, 64 bits    | long    |                      |
| another number             | double  | whole numbers        |
| a string                   | string  |                      |
| a list, an object          | string  | its JSON             |

A field of which the rows that it comes with have whole and other numbers is a double. A field named like a column that every
table has gets an underscore before its name.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from braidlog.tables.segments import SCHEMA

FIELDS_MAX = 500
"""Columns of one table; a topic whose fields are names of things would make millions."""
NAME_CHARS_MAX = 200
_INT64 = range(-(2**63), 2**63)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
Row = dict[str, Any]


def objects(values: Iterable[bytes | None]) -> list[Row | None]:
    """What each value is as a JSON object; None if it is none."""
    found: list[Row | None] = []
    for value in values:
        try:
            row = None if value is None else _decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            row = None
        found.append(row if isinstance(row, dict) else None)
    return found


def column_of(field: str) -> str:
    """The column of a field."""
    return f"_{field}" if field.lower() in SCHEMA.names else field


def note_new(known: pa.Schema, kinds: dict[str, pa.DataType], rows: Iterable[Row | None]) -> None:
    """Add to `kinds` the columns of fields that are new in these rows and have a value."""
    taken = {name.lower() for name in (*known.names, *kinds)}
    for row in rows:
        for field, value in () if row is None else row.items():
            column = column_of(field)
            kind = _kind(value)
            if kind is None or (column.lower() in taken and column not in kinds):
                continue
            if column not in kinds:
                if not _is_name(column) or len(taken) >= FIELDS_MAX:
                    continue
                taken.add(column.lower())
                kinds[column] = kind
            elif {kinds[column], kind} == {pa.int64(), pa.float64()}:
                kinds[column] = pa.float64()


def _is_name(column: str) -> bool:
    return 0 < len(column) <= NAME_CHARS_MAX and column.isprintable() and "." not in column


def columns(rows: Sequence[Row | None], schema: pa.Schema) -> list[pa.Array]:
    """Of each field of `schema` what the rows have of it."""
    return [_column(rows, field) for field in schema]


def _column(rows: Sequence[Row | None], field: pa.Field) -> pa.Array:
    # The table's column tells which field it is: names that begin with an underscore may be of one that was in the way.
    name = field.name
    own = name[1:] if name.startswith("_") and name[1:].lower() in SCHEMA.names else name
    fit = _FITS[field.type]
    return pa.array(
        [None if row is None or (value := row.get(own)) is None else fit(value) for row in rows], field.type
    )


def _kind(value: Any) -> pa.DataType | None:  # noqa: ANN401 - whatever JSON has
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
    return float(value) if type(value) is int and abs(value) < 2**1000 else None


def _fit_text(value: Any) -> str | None:  # noqa: ANN401 - as above
    if isinstance(value, str):
        return value
    return _encode(value).decode() if isinstance(value, dict | list) else None


_FITS = {pa.bool_(): _fit_bool, pa.int64(): _fit_int, pa.float64(): _fit_float, pa.string(): _fit_text}
OF_JSON = frozenset(_FITS)
