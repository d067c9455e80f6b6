"""Checks whether data of one Protobuf schema can be read with another, by Confluent's published rules of evolution.

The result is a list of incompatibilities, empty if there are none.
"""

from typing import Final

from braidlog.registry.protobuf.schema import SCALARS, Field, File, Message, messages_of

_GENERAL: Final = frozenset({"int32", "int64", "uint32", "uint64", "bool"})
_SCALAR_GROUPS: Final = (
    _GENERAL,
    frozenset({"sint32", "sint64"}),
    frozenset({"fixed32", "sfixed32"}),
    frozenset({"fixed64", "sfixed64"}),
    frozenset({"string", "bytes"}),
)
"""Scalars that can be read as each other."""


def misfits(reader: File, writer: File) -> list[str]:
    """Return the incompatibilities. A package may be renamed; a message must not be removed."""
    ours, theirs = dict(messages_of(reader)), dict(messages_of(writer))
    faults = [f"MESSAGE_REMOVED at {name}" for name in theirs if name not in ours]
    packages = reader.package, writer.package
    for name in theirs.keys() & ours.keys():
        faults += _message(ours[name], theirs[name], name, packages)
    return sorted(faults)


def _message(reader: Message, writer: Message, place: str, packages: tuple[str, str]) -> list[str]:
    ours = {field.number: field for field in reader.fields}
    theirs = {field.number: field for field in writer.fields}
    gone, new = theirs.keys() - ours.keys(), ours.keys() - theirs.keys()
    faults = [f"REQUIRED_FIELD_REMOVED at {place}/{each}" for each in gone if theirs[each].label == "required"]
    faults += [f"REQUIRED_FIELD_ADDED at {place}/{each}" for each in new if ours[each].label == "required"]
    for number in ours.keys() & theirs.keys():
        faults += [f"{each} at {place}/{number}" for each in _field(ours[number], theirs[number], packages)]
    return faults + _oneofs(reader, writer, place)


def _field(reader: Field, writer: Field, packages: tuple[str, str]) -> list[str]:
    ours, theirs = _kind(reader), _kind(writer)
    faults = []
    if ours != theirs:
        faults.append("FIELD_KIND_CHANGED")
    elif ours == "scalar" and not _same_scalar(_scalar(reader), _scalar(writer)):
        faults.append("FIELD_SCALAR_KIND_CHANGED")
    elif ours in ("message", "map") and _named(reader, packages[0]) != _named(writer, packages[1]):
        faults.append("FIELD_NAMED_TYPE_CHANGED")
    is_repeated = (reader.label == "repeated") != (writer.label == "repeated")
    if is_repeated and ours == theirs == "scalar" and _scalar(writer) not in ("string", "bytes"):
        faults.append("FIELD_NUMERIC_LABEL_CHANGED")
    if (reader.label == "required") != (writer.label == "required"):
        faults.append("REQUIRED_FIELD_ADDED" if reader.label == "required" else "REQUIRED_FIELD_REMOVED")
    return faults


def _kind(field: Field) -> str:
    return "map" if field.key else "scalar" if field.type in SCALARS or field.is_enum else "message"


def _scalar(field: Field) -> str:
    """Return the scalar type; an enum is read like a number."""
    return "int32" if field.is_enum else field.type


def _same_scalar(one: str, other: str) -> bool:
    return one == other or any(one in group and other in group for group in _SCALAR_GROUPS)


def _named(field: Field, package: str) -> tuple[str, str]:
    return field.key, (field.resolved or field.type).removeprefix(f"{package}.")


def _oneofs(reader: Message, writer: Message, place: str) -> list[str]:
    ours, theirs = _members(reader), _members(writer)
    before = {field.number: field.oneof for field in writer.fields}
    faults = []
    for name, numbers in ours.items():
        moved = [number for number in numbers if number in before and before[number] != name]
        if moved and name in theirs:
            faults += [f"FIELD_MOVED_TO_EXISTING_ONEOF at {place}/{number}" for number in moved]
        elif len([number for number in moved if not before[number]]) > 1:
            faults.append(f"MULTIPLE_FIELDS_MOVED_TO_ONEOF at {place}/{name}")
    for name, numbers in theirs.items():
        if name in ours:
            faults += [f"ONEOF_FIELD_REMOVED at {place}/{number}" for number in sorted(numbers - ours[name])]
    return faults


def _members(message: Message) -> dict[str, set[int]]:
    members: dict[str, set[int]] = {}
    for field in message.fields:
        if field.oneof:
            members.setdefault(field.oneof, set()).add(field.number)
    return members
