"""Protobuf values as Arrow columns: parsed by Google's library with the reader's schema, as Protobuf evolves.

Knows: which column a field is, where messages stand in a file. Refuses to know: registries, Spark.
Invariants: a field that is not there is null where it can be told (messages, `optional`, members of a oneof, proto2), else its
default. Numbers without a sign have a column that holds all of them.

| Protobuf | Arrow |
|---|---|
| bool, int32, int64, float, double, string, bytes | the same |
| uint32, uint64 | int64, decimal128(20) |
| enum | string: its name, or the number if it has none |
| repeated, map, message | list, map, struct |
| Timestamp, Duration | timestamp[us, UTC], duration[us] |
| BoolValue, Int64Value, … | what they hold |
| Struct, Value, ListValue | string: their JSON |
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

import msgspec
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from braidlog.registry.columns import (
    WHY_CHARS_MAX,
    Build,
    ColumnTypeError,
    Decode,
    Errors,
    Values,
    built,
    child,
    chosen,
    list_of,
    map_of,
    plain,
    struct,
    types_of,
)
from braidlog.registry.proto import File, Message, joined
from braidlog.registry.schemas import SERIALIZED, ProtobufSchema, Schema

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


class MessageType:
    """A message of a schema: what it is called, and how its bytes are parsed."""

    def __init__(self, schema: ProtobufSchema, references: Mapping[str, Schema], name: str = "") -> None:
        """`name`: with its package or below it; the first message of the file unless given."""
        self.indexes, self.name = _place(schema.file, name)
        pool = descriptor_pool.DescriptorPool()
        for path, each in references.items():
            _add(pool, path, ProtobufSchema(each.text, references))
        _add(pool, "braidlog/value.proto", schema)
        try:
            self.descriptor: Descriptor = pool.FindMessageTypeByName(self.name)
        except (KeyError, TypeError) as error:
            raise ColumnTypeError(f"{self.name}: Google's library refuses its file: {error}") from None
        self.make: Any = message_factory.GetMessageClass(self.descriptor)

    def column_type(self, wanted: pa.DataType | None = None) -> pa.DataType:
        """What it is as a column. Raises `ColumnTypeError`."""
        return _message_type(self.descriptor, wanted, self.descriptor.name, ())

    def field_types(self) -> dict[str, pa.DataType]:
        """Of its fields those that are columns."""
        inside = (self.descriptor.full_name,)
        fields = self.descriptor.fields
        return types_of((each.name, partial(_field_type, each, None, each.name, inside)) for each in fields)

    def decoder(self, wanted: pa.DataType) -> Decode:
        build = _message(self.descriptor, wanted)

        def decode(payloads: list[bytes | None]) -> tuple[pa.Array, Errors]:
            errors: Errors = [None] * len(payloads)
            return built(build, self._parsed(payloads, errors), errors), errors

        return decode

    def _parsed(self, payloads: list[bytes | None], errors: Errors) -> Values:
        parse = self.make.FromString
        found: list[Any] = []
        for at, payload in enumerate(payloads):
            value = None
            if payload is not None:
                try:
                    value = parse(payload)
                except DecodeError as error:
                    errors[at] = f"no message {self.name}: {error}"[:WHY_CHARS_MAX]
            found.append(value)
        return found


def name_at(file: File, indexes: Sequence[int]) -> str:
    """The full name of the message at a place of a file; "" if there is none."""
    scope, listed = file.package, file.messages
    for index in indexes:
        if not 0 <= index < len(listed):
            return ""
        scope, listed = joined(scope, listed[index].name), listed[index].messages
    return scope


def _place(file: File, name: str) -> tuple[tuple[int, ...], str]:
    def walk(listed: Sequence[Message], scope: str, path: tuple[int, ...]) -> Any:  # noqa: ANN401 - pairs
        for at, each in enumerate(listed):
            yield (*path, at), joined(scope, each.name)
            yield from walk(each.messages, joined(scope, each.name), (*path, at))

    every: list[tuple[tuple[int, ...], str]] = list(walk(file.messages, file.package, ()))
    for path, full in every:
        if name in ("", full, full.removeprefix(f"{file.package}.")):
            return path, full
    raise ColumnTypeError(f"no message {name!r} in the schema; it has {', '.join(full for _, full in every) or 'none'}")


def _add(pool: descriptor_pool.DescriptorPool, path: str, schema: ProtobufSchema) -> None:
    made = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.formatted(SERIALIZED)))
    made.name = path
    for each in made.dependency:
        if each.startswith("google/protobuf/"):
            _add_googles(pool, each)
    try:
        pool.Add(made)
    except TypeError as error:
        raise ColumnTypeError(f"{path}: {error}") from None


def _add_googles(pool: descriptor_pool.DescriptorPool, path: str) -> None:
    """A file that comes with every compiler."""
    module = path.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        found = __import__(module, fromlist=["DESCRIPTOR"]).DESCRIPTOR
    except ImportError:
        raise ColumnTypeError(f"import {path!r}: Google's library has no such file") from None
    made = descriptor_pb2.FileDescriptorProto.FromString(found.serialized_pb)
    for each in made.dependency:
        _add_googles(pool, each)
    pool.Add(made)


# -- types ---------------------------------------------------------------------------------------------------------


def _message_type(kind: Descriptor, wanted: pa.DataType | None, place: str, open_types: tuple[str, ...]) -> pa.DataType:
    if kind.full_name in _TIMES:
        return _TIMES[kind.full_name]
    if kind.full_name in _AS_JSON:
        return pa.string()
    if kind.file.name == _WRAPPERS:
        return _one_type(kind.fields_by_name["value"], None, place, open_types)
    if kind.full_name in open_types:
        raise ColumnTypeError(f"{place}: {kind.full_name} contains itself, which no column can; leave the field out")
    inside = (*open_types, kind.full_name)
    return pa.struct(
        [
            pa.field(name, _field_type(kind.fields_by_name[name], child(wanted, name), f"{place}.{name}", inside))
            for name in chosen([each.name for each in kind.fields], wanted, place)
        ]
    )


def _field_type(
    field: FieldDescriptor, wanted: pa.DataType | None, place: str, open_types: tuple[str, ...]
) -> pa.DataType:
    if _is_map(field):
        key, item = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        of_item = wanted.item_type if wanted is not None and pa.types.is_map(wanted) else None
        return pa.map_(_one_type(key, None, place, open_types), _one_type(item, of_item, f"{place}[]", open_types))
    if field.is_repeated:
        item = wanted.value_type if wanted is not None and pa.types.is_list(wanted) else None
        return pa.list_(pa.field("element", _one_type(field, item, f"{place}[]", open_types)))
    return _one_type(field, wanted, place, open_types)


def _one_type(
    field: FieldDescriptor, wanted: pa.DataType | None, place: str, open_types: tuple[str, ...]
) -> pa.DataType:
    if field.message_type is not None:
        return _message_type(field.message_type, wanted, place, open_types)
    return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else _SCALARS[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


# -- columns -------------------------------------------------------------------------------------------------------


def _message(kind: Descriptor, wanted: pa.DataType) -> Build:
    if kind.full_name in _TIMES:
        make = plain(_TIMES[kind.full_name], as_type=wanted)
        return lambda values: make([None if each is None else _micros(each) for each in values])
    if kind.full_name in _AS_JSON:
        return lambda values: pa.array([None if each is None else _json(each) for each in values], pa.string())
    if kind.file.name == _WRAPPERS:
        inner = _one(kind.fields_by_name["value"], wanted)
        return lambda values: inner([None if each is None else each.value for each in values])
    return struct([(each, *_field(kind.fields_by_name[each.name], each.type)) for each in wanted])


def _micros(value: Any) -> int:  # noqa: ANN401 - a Timestamp or a Duration
    return int(value.seconds * 1_000_000 + value.nanos // 1000)


def _json(value: Any) -> str:  # noqa: ANN401 - a message
    return msgspec.json.encode(json_format.MessageToDict(value)).decode()


def _field(field: FieldDescriptor, wanted: pa.DataType) -> tuple[Callable[[Any], Any], Build]:
    name, take = field.name, attrgetter(field.name)
    if _is_map(field):
        key, item = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        return take, map_of(wanted, _one(key, wanted.key_type), _one(item, wanted.item_type))
    if field.is_repeated:
        return take, list_of(wanted.value_field, _one(field, wanted.value_type))
    if not field.has_presence:
        return take, _one(field, wanted)
    return lambda message: take(message) if message.HasField(name) else None, _one(field, wanted)


def _one(field: FieldDescriptor, wanted: pa.DataType) -> Build:
    if field.message_type is not None:
        return _message(field.message_type, wanted)
    if field.enum_type is not None:
        names = _names(field.enum_type)
        return lambda values: pa.array(
            [None if each is None else names.get(each, str(each)) for each in values], pa.string()
        )
    return plain(_one_type(field, None, "", ()), as_type=wanted)


def _names(kind: EnumDescriptor) -> dict[int, str]:
    return {number: value.name for number, value in kind.values_by_number.items()}
