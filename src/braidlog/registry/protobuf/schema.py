"""Protobuf schemas as a tree, the common form of a .proto file and a serialized descriptor.

Resolves type names. Does not handle: text (`text.py`), bytes (`descriptor.py`), compatibility
(`proto_compatibility.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from braidlog.registry.errors import invalid

SCALARS: Final = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}
"""The numbers of descriptor.proto's FieldDescriptorProto.Type."""
SCOPES_MAX: Final = 100
"""Maximum depth of a package and the messages around a field: a type's name is looked up in each of them."""
GROUP, MESSAGE, ENUM = 10, 11, 14
KNOWN_PREFIXES: Final = ("google.protobuf.", "google.type.", "confluent.")
KNOWN_ENUMS: Final = frozenset({"google.protobuf.NullValue", "google.type.DayOfWeek", "google.type.Month"})
KNOWN_FILES: Final = ("google/protobuf/", "google/type/", "confluent/")
"""Files that are part of every compiler, or of Confluent's library, and are never registered."""

Option = tuple[str, str]
"""Name and value, as in a file: a string value includes its quotes."""


class Field(msgspec.Struct):
    name: str
    number: int
    type: str
    label: str = ""
    key: str = ""
    """For a map: the type of its keys; `type` is then that of its values."""
    oneof: str = ""
    options: list[Option] = []
    resolved: str = ""
    """The full name of a message or an enum; "" for a scalar."""
    is_enum: bool = False


class Enum(msgspec.Struct):
    name: str
    values: list[tuple[str, int, list[Option]]] = []
    options: list[Option] = []
    reserved: list[tuple[int, int]] = []
    reserved_names: list[str] = []


class Message(msgspec.Struct):
    name: str
    fields: list[Field] = []
    messages: "list[Message]" = []
    enums: list[Enum] = []
    oneofs: list[str] = []
    options: list[Option] = []
    reserved: list[tuple[int, int]] = []
    """Inclusive ranges."""
    reserved_names: list[str] = []
    extension_ranges: list[tuple[int, int]] = []
    extends: list[tuple[str, Field]] = []


class Method(msgspec.Struct):
    name: str
    input: str
    output: str
    client_streaming: bool = False
    server_streaming: bool = False
    options: list[Option] = []


class Service(msgspec.Struct):
    name: str
    methods: list[Method] = []
    options: list[Option] = []


class File(msgspec.Struct):
    syntax: str = "proto2"
    package: str = ""
    imports: list[tuple[str, str]] = []
    """The kind ("", "public" or "weak"), and the path."""
    messages: list[Message] = []
    enums: list[Enum] = []
    services: list[Service] = []
    options: list[Option] = []
    extends: list[tuple[str, Field]] = []


Symbols = dict[str, bool]
"""Full names, and whether each is an enum."""


def joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def messages_of(file: File) -> Iterator[tuple[str, Message]]:
    """Yield all messages with their names below the package, outer ones first."""

    def walk(scope: str, listed: Sequence[Message]) -> Iterator[tuple[str, Message]]:
        for each in listed:
            name = joined(scope, each.name)
            yield name, each
            yield from walk(name, each.messages)

    return walk("", file.messages)


def symbols_of(file: File) -> Symbols:
    symbols: Symbols = {joined(file.package, enum.name): True for enum in file.enums}
    for name, message in messages_of(file):
        symbols[joined(file.package, name)] = False
        symbols |= {joined(file.package, joined(name, enum.name)): True for enum in message.enums}
    return symbols


def resolve(file: File, imported: Mapping[str, bool]) -> File:
    """Set the full name of each field's type. Raises INVALID_SCHEMA for an undefined type, or a duplicate number."""
    symbols = {**imported, **symbols_of(file)}
    for name, message in messages_of(file):
        numbers: set[int] = set()
        names: set[str] = set()
        for field in message.fields:
            if field.number in numbers or field.name in names:
                raise invalid(f"field {field.name} = {field.number} of {name} occurs twice")
            numbers.add(field.number)
            names.add(field.name)
            _resolve_field(field, joined(file.package, name), symbols)
        for _, field in message.extends:
            _resolve_field(field, joined(file.package, name), symbols)
    for _, field in file.extends:
        _resolve_field(field, file.package, symbols)
    return file


def _resolve_field(field: Field, scope: str, symbols: Mapping[str, bool]) -> None:
    if field.type not in SCALARS:
        field.resolved, field.is_enum = find(field.type, scope, symbols)


def find(name: str, scope: str, symbols: Mapping[str, bool]) -> tuple[str, bool]:
    """Resolve a name in a scope, innermost first; return the full name, and whether it is an enum."""
    candidates = [name[1:]] if name.startswith(".") else []
    if not candidates:
        parts = scope.split(".") if scope else []
        if len(parts) > SCOPES_MAX:
            raise invalid(f"a scope of {len(parts)} names; use a package of fewer names")
        candidates = [".".join([*parts[:size], name]) for size in range(len(parts), -1, -1)]
    for candidate in candidates:
        if candidate in symbols:
            return candidate, symbols[candidate]
    for candidate in candidates:
        if candidate.startswith(KNOWN_PREFIXES):
            return candidate, candidate in KNOWN_ENUMS
    raise invalid(
        f"unknown type {name!r} in {scope or 'this file'}; import its file, and add a reference to its schema"
    )


def name_at(file: File, indexes: Sequence[int]) -> str:
    """Return the full name of the message at these indexes of a file; "" if there is none."""
    scope, listed = file.package, file.messages
    for index in indexes:
        if not 0 <= index < len(listed):
            return ""
        scope, listed = joined(scope, listed[index].name), listed[index].messages
    return scope
