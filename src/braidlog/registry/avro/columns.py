"""Avro values as Arrow columns: resolves decoded values (`values.py`) to a reader's schema.

Does not handle: registries, Spark. A value is valid only if it matches its writer's schema to its last byte.
Compatibility follows Avro's rules (`avro_compatibility.py`). For compatible schemas fields are matched once per pair of
schemas, not per value. If only some values can be resolved, fastavro resolves each of them. A schema that contains
itself is refused, because its values have no maximum depth.

| Avro | Arrow |
|---|---|
| boolean, int, long, float, double, string, bytes | the same type; int has 32 bits |
| enum | string |
| fixed | binary |
| array, map, record | list, map, struct |
| null and one other type | the other type |
| decimal | decimal128 |
| date, timestamp-*, local-timestamp-* | date32, timestamp[us], with UTC or without a zone |
| time-*, uuid, duration | as encoded |
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from braidlog.registry.avro.avro_compatibility import misfits, written
from braidlog.registry.avro.schema import Field, Type
from braidlog.registry.avro.values import check_bounded, decimal_of, decoded, default_of, parsed
from braidlog.registry.errors import ColumnTypeError
from braidlog.registry.value_columns import (
    Build,
    Decode,
    Errors,
    built,
    child,
    chosen,
    count_column,
    list_of,
    map_of,
    plain,
    struct,
    types_of,
)

_SCALARS: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_TIMES: Final = {
    "date": (pa.date32(), pa.date32()),
    **{
        f"{prefix}timestamp-{unit}": (pa.timestamp(short, zone), pa.timestamp("us", zone))
        for prefix, zone in (("", "UTC"), ("local-", None))
        for unit, short in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
"""Logical types: the unit of the numbers, and the column type."""
_DECIMAL_DIGITS_MAX: Final = 38


def _column_type(
    kind: Type, target: pa.DataType | None, place: str, made: "count[int]", open_types: tuple[int, ...] = ()
) -> pa.DataType:
    """Return the column type; `wanted`: only these fields of it; `made` counts the columns of the schema."""
    count_column(made, place, len(open_types))
    if id(kind) in open_types:
        raise ColumnTypeError(f"{place}: {kind.name} contains itself, so it cannot be a column; leave the field out")
    inside = (*open_types, id(kind))
    match kind.kind:
        case "record":
            fields = {field.name: field for field in kind.fields}
            return pa.struct(
                [
                    pa.field(
                        name, _column_type(fields[name].type, child(target, name), f"{place}.{name}", made, inside)
                    )
                    for name in chosen(list(fields), target, place)
                ]
            )
        case "array" | "map":
            assert kind.items is not None
            if kind.kind == "array":
                item = target.value_type if target is not None and pa.types.is_list(target) else None
                return pa.list_(pa.field("element", _column_type(kind.items, item, f"{place}[]", made, inside)))
            item = target.item_type if target is not None and pa.types.is_map(target) else None
            return pa.map_(pa.string(), _column_type(kind.items, item, f"{place}[]", made, inside))
        case "union":
            return _column_type(_only_branch(kind, place), target, place, made, inside)
        case "null":
            raise ColumnTypeError(f"{place}: null cannot be a column; leave the field out")
    return _scalar(kind, place)[1]


def column_type(root: Type, target: pa.DataType | None = None) -> pa.DataType:
    """Return the column type of a schema's values. Raises `ColumnTypeError`."""
    return _column_type(root, target, root.short_name, count())


def field_types(root: Type) -> dict[str, pa.DataType]:
    """Return the fields of a record that can be columns; empty if the type is not a record."""
    fields = root.fields if root.kind == "record" else ()
    made = count()
    return types_of(
        (field.name, partial(_column_type, field.type, None, field.name, made, (id(root),))) for field in fields
    )


def _only_branch(kind: Type, place: str) -> Type:
    branches = [branch for branch in kind.branches if branch.kind != "null"]
    if len(branches) != 1:
        listed = ", ".join(branch.name or branch.kind for branch in kind.branches)
        raise ColumnTypeError(
            f"{place}: a union of {listed} cannot be a column (null and one other type can); leave the field out"
        )
    return branches[0]


def _scalar(kind: Type, place: str) -> tuple[pa.DataType, pa.DataType]:
    """Return the type in which Arrow accepts decoded values, and the column type."""
    logical = (kind.logical or {}).get("logicalType")
    if logical in _TIMES and kind.kind in ("int", "long"):
        return _TIMES[logical]
    if (made := decimal_of(kind)) is not None:
        precision, scale = made
        if precision > _DECIMAL_DIGITS_MAX:
            raise ColumnTypeError(f"{place}: a decimal of {precision} digits; the maximum is {_DECIMAL_DIGITS_MAX}")
        return (pa.decimal128(precision, scale),) * 2
    return (_SCALARS[kind.kind],) * 2


# -- resolution ----------------------------------------------------------------------------------------------------


def _resolved(reader: Type, writer: Type, target: pa.DataType) -> Build:
    """Return a builder for values that fastavro decoded with the writer's schema; the schemas are compatible."""
    reader = _only_branch(reader, "") if reader.kind == "union" else reader
    if writer.kind == "union":
        branches = [branch for branch in writer.branches if branch.kind != "null"]
        if len(branches) != 1:  # several numeric types, for example: the column's own type accepts all of them
            if reader.kind not in _SCALARS:
                raise ColumnTypeError(f"a union of several types is not a {target}")
            writer = reader
        else:
            writer = branches[0]
    match reader.kind:
        case "record":
            fields = {each.name: each for each in reader.fields}
            return struct([(field, *_field(fields[field.name], writer, field.type)) for field in target])
        case "array":
            assert reader.items is not None
            assert writer.items is not None
            return list_of(target.value_field, _resolved(reader.items, writer.items, target.value_type))
        case "map":
            assert reader.items is not None
            assert writer.items is not None
            return map_of(target, plain(pa.string()), _resolved(reader.items, writer.items, target.item_type))
        case "enum" if reader.default is not None:
            symbols, default = frozenset(reader.symbols), reader.default
            return lambda values: pa.array(
                [value if value is None or value in symbols else default for value in values], target
            )
    return plain(_scalar(reader, "")[0], as_type=target)


def _field(field: Field, writer: Type, target: pa.DataType) -> tuple[Callable[[Any], Any], Build]:
    theirs = written(field, writer)
    if theirs is not None:
        return itemgetter(theirs.name), _resolved(field.type, theirs.type, target)
    default = default_of(field.type, field.default)
    # A default is a value of the reader's schema.
    return lambda _: default, _resolved(field.type, field.type, target)


def decoder(reader: Type, writer: Type, target: pa.DataType) -> Decode:
    """Return a decoder of the writer's values for the reader's schema. Raises `ColumnTypeError` if no value can be
    resolved."""
    check_bounded(writer, writer.short_name)
    theirs = parsed(writer)
    if misfits(reader, writer):
        # Some values may still fit: resolve each separately.
        ours, build = parsed(reader), _resolved(reader, reader, target)
    else:
        ours, build = None, _resolved(reader, writer, target)

    def decode(payloads: list[bytes | None]) -> tuple[pa.Array, Errors]:
        errors: Errors = [None] * len(payloads)
        return built(build, decoded(payloads, theirs, ours, errors), errors), errors

    return decode
