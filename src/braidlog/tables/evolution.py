"""The types of a table's columns, and their evolution by Iceberg's rules.

A column can be read with every type that it grows into: numbers become wider, records gain fields, and nothing else
changes. Values that do not fit a column are null in it. Does not handle: tables, formats of values.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_PLAIN: Final = frozenset(
    {
        *(pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()),
        *(pa.timestamp("us"), pa.timestamp("us", "UTC")),
    }
)
_WIDER: Final = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}
_SMALLER: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
"""pyiceberg's column types, and the types in which they are written."""


def written(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column of pyiceberg's is written."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, written(each.type)) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(written(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(written(kind.key_type), written(kind.item_type))
    return _SMALLER.get(kind, kind)


def storable(kind: pa.DataType) -> pa.DataType | None:
    """Return the column type for a value type: durations become microseconds; None if there is none, as for an empty
    record."""
    if kind in _PLAIN or pa.types.is_decimal128(kind):
        return kind
    if kind == pa.duration("us"):
        return pa.int64()
    if pa.types.is_struct(kind):
        fields = [
            pa.field(each.name, stored) for each in _distinct(kind) if (stored := storable(each.type)) is not None
        ]
        return pa.struct(fields) if fields else None
    if pa.types.is_list(kind):
        item = storable(kind.value_type)
        return None if item is None else _list(item)
    if pa.types.is_map(kind):
        key, item = storable(kind.key_type), storable(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return None


def _distinct(fields: Iterable[pa.Field]) -> Iterable[pa.Field]:
    """Yield the first of fields whose names differ only in case."""
    taken: set[str] = set()
    for field in fields:
        if field.name.lower() not in taken:
            taken.add(field.name.lower())
            yield field


def _list(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item))


def grown(has: pa.DataType, wants: pa.DataType) -> pa.DataType:
    """Return a column's type after adding values of another type: wider, or unchanged if Iceberg has no common
    type."""
    if pa.types.is_struct(has) and pa.types.is_struct(wants):
        theirs = {field.name: field.type for field in wants}
        taken = {each.name.lower() for each in has}
        return pa.struct(
            [
                *(pa.field(each.name, grown(each.type, theirs.get(each.name, each.type))) for each in has),
                *(field for field in wants if field.name.lower() not in taken),
            ]
        )
    if pa.types.is_list(has) and pa.types.is_list(wants):
        return _list(grown(has.value_type, wants.value_type))
    if pa.types.is_map(has) and pa.types.is_map(wants):
        return pa.map_(has.key_type, grown(has.item_type, wants.item_type))
    return wants if _widens(has, wants) else has


def fits(own: pa.DataType, column: pa.DataType) -> bool:
    """Return whether all values of a type fit into a column."""
    if pa.types.is_struct(own) and pa.types.is_struct(column):
        types = {each.name: each.type for each in column}
        return all(each.name in types and fits(each.type, types[each.name]) for each in own)
    if pa.types.is_list(own) and pa.types.is_list(column):
        return fits(own.value_type, column.value_type)
    if pa.types.is_map(own) and pa.types.is_map(column):
        return bool(own.key_type == column.key_type) and fits(own.item_type, column.item_type)
    return bool(own == column) or _widens(own, column)


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if pa.types.is_decimal128(narrow) and pa.types.is_decimal128(wide):
        return bool(narrow.scale == wide.scale and narrow.precision < wide.precision)
    return bool(_WIDER.get(narrow) == wide)


def fitted(values: pa.Array, column: pa.DataType) -> pa.Array:
    """Convert values to a column's type; null if they do not fit."""
    own = values.type
    if own == column:
        return values
    if pa.types.is_struct(own) and pa.types.is_struct(column):
        fields = dict(zip((each.name for each in own), values.flatten(), strict=True))
        children = [
            fitted(fields[each.name], each.type) if each.name in fields else pa.nulls(len(values), each.type)
            for each in column
        ]
        return pa.StructArray.from_arrays(children, fields=list(column), mask=values.is_null())
    if pa.types.is_list(own) and pa.types.is_list(column):
        return pa.ListArray.from_arrays(_offsets(values), fitted(values.values, column.value_type), column)
    if pa.types.is_map(own) and pa.types.is_map(column) and own.key_type == column.key_type:
        return pa.MapArray.from_arrays(_offsets(values), values.keys, fitted(values.items, column.item_type), column)
    return values.cast(column) if _widens(own, column) else pa.nulls(len(values), column)


def _offsets(values: pa.Array) -> pa.Array:
    """Return where each list begins, null for a null list, and where the last one ends."""
    starts = pc.if_else(values.is_valid(), values.offsets[:-1], pa.scalar(None, pa.int32()))
    return pa.concat_arrays([starts, values.offsets[-1:]])
