"""Protobuf values as Arrow columns: parsed (`messages.py`) with the reader's schema, as Protobuf evolves.

A missing field is null if its absence is encoded (messages, `optional`, members of a oneof, proto2), else its
default. Unsigned numbers have a column type that holds all of them. Does not handle: registries, Spark.

| Protobuf | Arrow |
|---|---|
| bool, int32, int64, float, double, string, bytes | the same type |
| uint32, uint64 | int64, decimal128(20) |
| enum | string: its name, or the number if it has none |
| repeated, map, message | list, map, struct |
| Timestamp, Duration | timestamp[us, UTC], duration[us] |
| BoolValue, Int64Value, … | the wrapped type |
| Struct, Value, ListValue | string: their JSON |
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any, Final

import msgspec
import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from braidlog.registry.errors import ColumnTypeError
from braidlog.registry.protobuf.messages import MessageType
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
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_GOOGLES: Final = "google.protobuf."
_TIMES: Final = {
    f"{_GOOGLES}Timestamp": pa.timestamp("us", "UTC"),
    f"{_GOOGLES}Duration": pa.duration("us"),
}
_AS_JSON: Final = frozenset({f"{_GOOGLES}Struct", f"{_GOOGLES}Value", f"{_GOOGLES}ListValue"})
_WRAPPERS: Final = "google/protobuf/wrappers.proto"


class MessageColumns(MessageType):
    """A message of a schema as a column."""

    def column_type(self, target: pa.DataType | None = None) -> pa.DataType:
        """Return its column type. Raises `ColumnTypeError`."""
        return _message_type(self.descriptor, target, self.descriptor.name, count(), ())

    def field_types(self) -> dict[str, pa.DataType]:
        """Return the fields that can be columns."""
        inside, made = (self.descriptor.full_name,), count()
        fields = self.descriptor.fields
        return types_of((field.name, partial(_field_type, field, None, field.name, made, inside)) for field in fields)

    def decoder(self, target: pa.DataType) -> Decode:
        build = _message(self.descriptor, target)

        def decode(payloads: list[bytes | None]) -> tuple[pa.Array, Errors]:
            errors: Errors = [None] * len(payloads)
            return built(build, self.parsed(payloads, errors), errors), errors

        return decode


# -- types ---------------------------------------------------------------------------------------------------------


def _message_type(
    kind: Descriptor, target: pa.DataType | None, place: str, made: "count[int]", open_types: tuple[str, ...]
) -> pa.DataType:
    if kind.full_name in _TIMES:
        return _TIMES[kind.full_name]
    if kind.full_name in _AS_JSON:
        return pa.string()
    if kind.file.name == _WRAPPERS:
        return _one_type(kind.fields_by_name["value"], None, place, made, open_types)
    if kind.full_name in open_types:
        raise ColumnTypeError(
            f"{place}: {kind.full_name} contains itself, so it cannot be a column; leave the field out"
        )
    inside = (*open_types, kind.full_name)
    return pa.struct(
        [
            pa.field(name, _field_type(kind.fields_by_name[name], child(target, name), f"{place}.{name}", made, inside))
            for name in chosen([field.name for field in kind.fields], target, place)
        ]
    )


def _field_type(
    field: FieldDescriptor, target: pa.DataType | None, place: str, made: "count[int]", open_types: tuple[str, ...]
) -> pa.DataType:
    if _is_map(field):
        key, item = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        of_item = target.item_type if target is not None and pa.types.is_map(target) else None
        return pa.map_(
            _one_type(key, None, place, made, open_types), _one_type(item, of_item, f"{place}[]", made, open_types)
        )
    if field.is_repeated:
        item = target.value_type if target is not None and pa.types.is_list(target) else None
        return pa.list_(pa.field("element", _one_type(field, item, f"{place}[]", made, open_types)))
    return _one_type(field, target, place, made, open_types)


def _one_type(
    field: FieldDescriptor, target: pa.DataType | None, place: str, made: "count[int]", open_types: tuple[str, ...]
) -> pa.DataType:
    count_column(made, place, len(open_types))
    if field.message_type is not None:
        return _message_type(field.message_type, target, place, made, open_types)
    return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else _SCALARS[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


# -- columns -------------------------------------------------------------------------------------------------------


def _message(kind: Descriptor, target: pa.DataType) -> Build:
    if kind.full_name in _TIMES:
        make = plain(_TIMES[kind.full_name], as_type=target)
        return lambda values: make([None if value is None else _micros(value) for value in values])
    if kind.full_name in _AS_JSON:
        return lambda values: pa.array([None if value is None else _json(value) for value in values], pa.string())
    if kind.file.name == _WRAPPERS:
        inner = _one(kind.fields_by_name["value"], target)
        return lambda values: inner([None if value is None else value.value for value in values])
    return struct([(each, *_field(kind.fields_by_name[each.name], each.type)) for each in target])


def _micros(value: Any) -> int:  # noqa: ANN401 - a Timestamp or a Duration
    return int(value.seconds * 1_000_000 + value.nanos // 1000)


def _json(value: Any) -> str:  # noqa: ANN401 - a message
    return msgspec.json.encode(json_format.MessageToDict(value)).decode()


def _field(field: FieldDescriptor, target: pa.DataType) -> tuple[Callable[[Any], Any], Build]:
    name, take = field.name, attrgetter(field.name)
    if _is_map(field):
        key, item = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        return take, map_of(target, _one(key, target.key_type), _one(item, target.item_type))
    if field.is_repeated:
        return take, list_of(target.value_field, _one(field, target.value_type))
    if not field.has_presence:
        return take, _one(field, target)
    return lambda message: take(message) if message.HasField(name) else None, _one(field, target)


def _one(field: FieldDescriptor, target: pa.DataType) -> Build:
    if field.message_type is not None:
        return _message(field.message_type, target)
    if field.enum_type is not None:
        names = _names(field.enum_type)
        return lambda values: pa.array(
            [None if value is None else names.get(value, str(value)) for value in values], pa.string()
        )
    return plain(_one_type(field, None, "", count(), ()), as_type=target)


def _names(kind: EnumDescriptor) -> dict[int, str]:
    return {number: value.name for number, value in kind.values_by_number.items()}
