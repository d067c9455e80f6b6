"""Decodes values: text, JSON with its fields, and formats with schemas (`schemas.py`).

Does not handle: reading values. The column has a row for each value, in order. A null value (a tombstone) stays null
and is valid. A bad value becomes null with a reason in `_error`, or the query fails and names the record.

Arrow parses JSON in blocks of rows, and an error in one row fails the block: then the block is halved until the bad
row is isolated.
"""

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from braidlog.registry import framing
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Range
from braidlog.spark.source.schemas import Parse, Reading, parser, reader

ERROR = "_error"
_WHY_MAX = 300

Decode = Callable[[pa.Array, pa.Array, Range], dict[str, pa.Array]]
"""Values and offsets of some rows of a range → the columns `value` and `_error`."""


class BadRecordError(ValueError):
    """An invalid value in a query with badRecords = fail."""


class _Object(msgspec.Struct):
    """Any JSON object; its fields are ignored."""


_objects = msgspec.json.Decoder(_Object)


def decoder_of(query: Query, target: pa.DataType | None, reading: Reading | None = None) -> Decode | None:
    """Return the decoder of a query; None if its values stay binary. `wanted`: the type of column `value`."""
    if query.value_format == "binary":
        return None
    parse: Parse
    if query.value_format == "string":
        parse = _texts
    elif query.value_format == "json":
        parse = _json(query, target, reading)
    else:
        assert reading is not None, "the schema is resolved before values are read"
        parse = parser(reading, reader(reading).column_type() if target is None else target)

    def decode(values: pa.Array, offsets: pa.Array, span: Range) -> dict[str, pa.Array]:
        made, errors = parse(values)
        if query.bad_records == "fail":
            _raise_first(errors, offsets, span)
        return {"value": made, ERROR: pa.array(errors, pa.string())}

    return decode


def _raise_first(errors: list[str | None], offsets: pa.Array, span: Range) -> None:
    for at, why in enumerate(errors):
        if why is not None:
            raise BadRecordError(f"{span.topic}/{span.partition} offset {offsets[at].as_py()}: {why}")


# -- text --------------------------------------------------------------------------------------------------------------


def _texts(values: pa.Array) -> tuple[pa.Array, list[str | None]]:
    try:
        return values.cast(pa.string()), [None] * len(values)
    except pa.ArrowInvalid:
        return _texts_one_by_one(values)


def _texts_one_by_one(values: pa.Array) -> tuple[pa.Array, list[str | None]]:
    texts: list[str | None] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        try:
            texts.append(None if value is None else value.decode())
            errors.append(None)
        except UnicodeDecodeError as error:
            texts.append(None)
            errors.append(f"not UTF-8: {error.reason} at byte {error.start}")
    return pa.array(texts, pa.string()), errors


# -- JSON --------------------------------------------------------------------------------------------------------------


def _json(query: Query, target: pa.DataType | None, reading: Reading | None) -> Parse:
    # A query for `_error` alone checks the syntax: its columns do not include the types.
    kind = pa.struct([]) if target is None else target
    _refuse_unreadable(kind)

    def parse(values: pa.Array) -> tuple[pa.Array, list[str | None]]:
        return structs(values, kind, whole=query.bad_records != "field")

    return parse if reading is None or reading.registry is None else _after_ids(parse)


def _after_ids(parse: Parse) -> Parse:
    """Decode values that begin with a schema id; the fields are the reader's, and missing fields are null."""

    def parse_framed(values: pa.Array) -> tuple[pa.Array, list[str | None]]:
        rows: list[bytes | None] = values.to_pylist()
        odd = [at for at, value in enumerate(rows) if value is not None and not framing.has_id(value)]
        for at in odd:
            rows[at] = None
        made, errors = parse(pa.array([None if row is None else row[framing.BYTES :] for row in rows], pa.binary()))
        for at in odd:
            errors[at] = framing.NO_ID
        return made, errors

    return parse_framed


def _refuse_unreadable(kind: pa.StructType) -> None:
    try:
        _read(b"{}", kind)
    except pa.ArrowNotImplementedError as error:
        raise ValueError(f"option valueSchema: it contains a type that JSON values cannot have: {error}") from None


def structs(values: pa.Array, kind: pa.StructType, *, whole: bool = False) -> tuple[pa.Array, list[str | None]]:
    """Decode JSON objects to a struct with these fields, and return each value's error. `whole`: a field of the wrong
    type makes all fields null."""
    texts, errors = _texts(values)
    lines: list[bytes] = []
    for at, value in enumerate(texts.to_pylist()):
        line = b"{}" if value is None else value.encode()
        if value is not None:
            try:
                _objects.decode(line)
            except msgspec.DecodeError as error:
                errors[at], line = f"not a JSON object: {error}"[:_WHY_MAX], b"{}"
        # A raw line break inside JSON is only whitespace; between values it is our separator.
        lines.append(line.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in line or b"\r" in line else line)
    unread = [why is not None for why in errors]
    columns = _typed(lines, 0, kind, errors)
    null = pc.or_(pc.is_null(texts), pa.array([why is not None for why in errors] if whole else unread, pa.bool_()))
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=null), errors


def _typed(lines: list[bytes], first: int, kind: pa.StructType, errors: list[str | None]) -> list[pa.Array]:
    """Decode these objects to columns; a field of the wrong type is null in its object, and reported."""
    if not lines:
        return [pa.array([], field.type) for field in kind]
    try:
        return _read(b"\n".join(lines), kind)
    except pa.ArrowInvalid as error:
        if len(lines) == 1:
            errors[first] = f"not of valueSchema: {str(error).removesuffix(' in row 0')}"[:_WHY_MAX]
            return _fields(lines[0], kind)
    half = len(lines) // 2
    left, right = _typed(lines[:half], first, kind, errors), _typed(lines[half:], first + half, kind, errors)
    return [pa.concat_arrays(both) for both in zip(left, right, strict=True)]


def _fields(line: bytes, kind: pa.StructType) -> list[pa.Array]:
    """Decode each field separately: those of the wrong type are null."""
    columns = []
    for field in kind:
        try:
            columns += _read(line, pa.struct([field]))
        except pa.ArrowInvalid:
            columns += _read(b"{}", pa.struct([field]))
    return columns


def _read(data: bytes, kind: pa.StructType) -> list[pa.Array]:
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore"),
    )
    return [table.column(number).combine_chunks() for number in range(table.num_columns)]
