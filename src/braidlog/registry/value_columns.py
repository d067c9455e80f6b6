"""Values with a schema as Arrow columns: the parts that Avro and Protobuf share.

A column has a row for each value, in order; a bad value is null, and its error gives the reason. Does not handle: any
format, registries.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final

import pyarrow as pa

from braidlog.registry.errors import WHY_CHARS_MAX, ColumnTypeError

DEPTH_MAX: Final = 100
COLUMNS_MAX: Final = 10_000
"""Maximum columns of a schema, including nested ones: types that each use others twice grow exponentially."""
Values = Sequence[Any]
Build = Callable[[Values], pa.Array]
"""Values, or None, → a column of them."""
Errors = list[str | None]
Decode = Callable[[list[bytes | None]], tuple[pa.Array, Errors]]
"""Payloads, without their prefix → a column, and the errors of null rows."""


def built(build: Build, values: Values, errors: Errors, first: int = 0) -> pa.Array:
    """Build a column. Arrow rejects a whole column for one bad value: then halve it until the bad value is
    isolated."""
    try:
        return build(values)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        if len(values) == 1:
            errors[first] = f"a value does not fit its type: {error}"[:WHY_CHARS_MAX]
            return build([None])
    half = len(values) // 2
    return pa.concat_arrays(
        [built(build, values[:half], errors, first), built(build, values[half:], errors, first + half)]
    )


def plain(kind: pa.DataType, *, as_type: pa.DataType | None = None) -> Build:
    """Return a builder for values that Arrow accepts as `kind`; casts them if another type is requested."""

    def build(values: Values) -> pa.Array:
        made = pa.array(values, kind)
        return made if as_type is None or as_type == kind else made.cast(as_type)

    return build


def struct(fields: Sequence[tuple[pa.Field, Callable[[Any], Any], Build]]) -> Build:
    """Return a builder. `fields`: each with a function that gets its value from a parent, and its builder."""
    declared = [field for field, _, _ in fields]

    def build(values: Values) -> pa.Array:
        is_null = [value is None for value in values]
        children = [make([None if value is None else take(value) for value in values]) for _, take, make in fields]
        if not children:
            return pa.array([None if null else {} for null in is_null], pa.struct([]))
        return pa.StructArray.from_arrays(children, fields=declared, mask=pa.array(is_null, pa.bool_()))

    return build


def list_of(item: pa.Field, make: Build) -> Build:
    def build(values: Values) -> pa.Array:
        offsets: list[int | None] = []
        inner: list[Any] = []
        for value in values:
            offsets.append(None if value is None else len(inner))
            inner.extend(value or ())
        return pa.ListArray.from_arrays(pa.array([*offsets, len(inner)], pa.int32()), make(inner), pa.list_(item))

    return build


def map_of(kind: pa.MapType, make_key: Build, make_item: Build) -> Build:
    """Return a builder. Values are dictionaries, or have `items`."""

    def build(values: Values) -> pa.Array:
        offsets: list[int | None] = []
        keys: list[Any] = []
        items: list[Any] = []
        for value in values:
            offsets.append(None if value is None else len(keys))
            for key, item in () if value is None else value.items():
                keys.append(key)
                items.append(item)
        return pa.MapArray.from_arrays(
            pa.array([*offsets, len(keys)], pa.int32()), make_key(keys), make_item(items), kind
        )

    return build


def types_of(fields: Iterable[tuple[str, Callable[[], pa.DataType]]]) -> dict[str, pa.DataType]:
    """Return the types of the fields that can be columns."""
    types = {}
    for name, type_of in fields:
        with contextlib.suppress(ColumnTypeError):
            types[name] = type_of()
    return types


def count_column(made: "count[int]", place: str, depth: int) -> None:
    """Count a column. Raises `ColumnTypeError` if the schema has too many columns, or is nested too deep."""
    if depth > DEPTH_MAX:
        raise ColumnTypeError(f"{place}: types are nested more than {DEPTH_MAX} deep; leave the field out")
    if next(made) >= COLUMNS_MAX:
        raise ColumnTypeError(f"{place}: the schema is more than {COLUMNS_MAX} columns; leave fields out")


def child(target: pa.DataType | None, name: str) -> pa.DataType | None:
    """Return the requested type of a struct's field; None if all of it is requested."""
    return None if target is None else target.field(name).type


def chosen(names: Sequence[str], target: pa.DataType | None, where: str) -> list[str]:
    """Return the requested fields of a struct, in order."""
    if target is None:
        return list(names)
    if not pa.types.is_struct(target):
        raise ColumnTypeError(f"{where} is a record, not {target}")
    asked = [field.name for field in target]
    strange = [each for each in asked if each not in names]
    if strange:
        raise ColumnTypeError(f"{where} has no field {strange[0]!r}; it has {', '.join(names)}")
    return asked
