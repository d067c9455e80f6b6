"""Converts a serialized FileDescriptorProto to a tree and back.

Supports the numbers in descriptor.proto, and those of its options that files use. Other options (extensions) are
dropped. Does not handle: text, resolving names.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from braidlog.codec.errors import ProtocolError
from braidlog.codec.varint import encode_unsigned, read_varlong
from braidlog.registry.errors import invalid
from braidlog.registry.protobuf.schema import (
    ENUM,
    GROUP,
    MESSAGE,
    SCALARS,
    Enum,
    Field,
    File,
    Message,
    Method,
    Option,
    Service,
    find,
    joined,
    symbols_of,
)

DEPTH_MAX: Final = 50
_LABELS: Final = {"optional": 1, "required": 2, "repeated": 3}
_NAMES_OF_LABELS: Final = {number: name for name, number in _LABELS.items()}
_NAMES_OF_SCALARS: Final = {number: name for name, number in SCALARS.items()}
_BOOLS: Final = {"false": 0, "true": 1}
_TEXT: Final[dict[str, int]] = {}
"""Marks an option with a text value."""

Known = dict[str, tuple[int, dict[str, int]]]
"""Option → its number, and the numbers of its enum values."""

FILE_OPTIONS: Final[Known] = {
    "java_package": (1, _TEXT),
    "java_outer_classname": (8, _TEXT),
    "optimize_for": (9, {"SPEED": 1, "CODE_SIZE": 2, "LITE_RUNTIME": 3}),
    "java_multiple_files": (10, _BOOLS),
    "go_package": (11, _TEXT),
    "java_generate_equals_and_hash": (20, _BOOLS),
    "deprecated": (23, _BOOLS),
    "java_string_check_utf8": (27, _BOOLS),
    "cc_enable_arenas": (31, _BOOLS),
    "objc_class_prefix": (36, _TEXT),
    "csharp_namespace": (37, _TEXT),
    "swift_prefix": (39, _TEXT),
    "php_class_prefix": (40, _TEXT),
    "php_namespace": (41, _TEXT),
    "ruby_package": (45, _TEXT),
}
MESSAGE_OPTIONS: Final[Known] = {"deprecated": (3, _BOOLS), "map_entry": (7, _BOOLS)}
FIELD_OPTIONS: Final[Known] = {
    "ctype": (1, {"STRING": 0, "CORD": 1, "STRING_PIECE": 2}),
    "packed": (2, _BOOLS),
    "deprecated": (3, _BOOLS),
    "lazy": (5, _BOOLS),
    "jstype": (6, {"JS_NORMAL": 0, "JS_STRING": 1, "JS_NUMBER": 2}),
}
ENUM_OPTIONS: Final[Known] = {"allow_alias": (2, _BOOLS), "deprecated": (3, _BOOLS)}
VALUE_OPTIONS: Final[Known] = {"deprecated": (1, _BOOLS)}
METHOD_OPTIONS: Final[Known] = {"deprecated": (33, _BOOLS)}


# -- writing -------------------------------------------------------------------------------------------------------


def _put(out: bytearray, number: int, value: int | str | bytes) -> None:
    if isinstance(value, int):
        out += encode_unsigned(number << 3) + encode_unsigned(value % 2**64)
        return
    data = value.encode() if isinstance(value, str) else value
    out += encode_unsigned(number << 3 | 2) + encode_unsigned(len(data)) + data


def _put_options(out: bytearray, at: int, options: Iterable[Option], known: Known) -> None:
    made = bytearray()
    for name, value in options:
        number, words = known.get(name, (0, _TEXT))
        if number and words is _TEXT:
            _put(made, number, value[1:-1])
        elif number and value in words:
            _put(made, number, words[value])
    if made:
        _put(out, at, bytes(made))


def write(file: File, name: str, imported: dict[str, bool]) -> bytes:  # noqa: C901 - one step a number
    """Encode a file whose types are resolved; `imported`: the symbols of its imports."""
    out = bytearray()
    symbols = {**imported, **symbols_of(file)}
    _put(out, 1, name)
    if file.package:
        _put(out, 2, file.package)
    for _, path in file.imports:
        _put(out, 3, path)
    for message in file.messages:
        _put(out, 4, _message(message, file.syntax, file.package, symbols))
    for enum in file.enums:
        _put(out, 5, _enum(enum))
    for service in file.services:
        _put(out, 6, _service(service, file.package, symbols))
    for extended, field in file.extends:
        _put(out, 7, _field(field, {}, file.syntax, find(extended, file.package, symbols)[0]))
    _put_options(out, 8, file.options, FILE_OPTIONS)
    for kind, number in (("public", 10), ("weak", 11)):
        for at, (each, _) in enumerate(file.imports):
            if each == kind:
                _put(out, number, at)
    if file.syntax != "proto2":
        _put(out, 12, file.syntax)
    return bytes(out)


def _entry_name(field: Field) -> str:
    """Return the name that compilers give to the message of a map's entries."""
    return "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"


def _message(message: Message, syntax: str, scope: str, symbols: dict[str, bool]) -> bytes:  # noqa: C901 - the same
    out = bytearray()
    own = joined(scope, message.name)
    _put(out, 1, message.name)
    optional = [f"_{each.name}" for each in message.fields if syntax == "proto3" and each.label == "optional"]
    oneofs = {name: at for at, name in enumerate([*message.oneofs, *optional])}
    for field in message.fields:
        _put(out, 2, _field(field, oneofs, syntax, scope=own))
    for field in message.fields:
        if field.key:
            _put(out, 3, _entry(field, syntax))
    for inner in message.messages:
        _put(out, 3, _message(inner, syntax, own, symbols))
    for enum in message.enums:
        _put(out, 4, _enum(enum))
    for first, last in message.extension_ranges:
        _put(out, 5, _range(first, last + 1))
    for extended, field in message.extends:
        _put(out, 6, _field(field, {}, syntax, find(extended, own, symbols)[0]))
    _put_options(out, 7, message.options, MESSAGE_OPTIONS)
    for name in oneofs:
        part = bytearray()
        _put(part, 1, name)
        _put(out, 8, bytes(part))
    for first, last in message.reserved:
        _put(out, 9, _range(first, last + 1))
    for name in message.reserved_names:
        _put(out, 10, name)
    return bytes(out)


def _range(first: int, last: int) -> bytes:
    out = bytearray()
    _put(out, 1, first)
    _put(out, 2, last)
    return bytes(out)


def _entry(field: Field, syntax: str) -> bytes:
    out = bytearray()
    _put(out, 1, _entry_name(field))
    _put(out, 2, _field(Field("key", 1, field.key, "optional"), {}, syntax))
    value = Field("value", 2, field.type, "optional", resolved=field.resolved, is_enum=field.is_enum)
    _put(out, 2, _field(value, {}, syntax))
    _put_options(out, 7, [("map_entry", "true")], MESSAGE_OPTIONS)
    return bytes(out)


def _field(field: Field, oneofs: dict[str, int], syntax: str, extendee: str = "", scope: str = "") -> bytes:
    out = bytearray()
    _put(out, 1, field.name)
    if extendee:
        _put(out, 2, f".{extendee}")
    _put(out, 3, field.number)
    _put(out, 4, _LABELS["repeated"] if field.key else _LABELS.get(field.label, 1))
    if field.key:
        _put(out, 5, MESSAGE)
        _put(out, 6, f".{joined(scope, _entry_name(field))}")
    elif field.resolved:
        _put(out, 5, ENUM if field.is_enum else MESSAGE)
        _put(out, 6, f".{field.resolved}")
    else:
        _put(out, 5, SCALARS[field.type])
    options = dict(field.options)
    if "default" in options:
        default = options["default"]
        _put(out, 7, default[1:-1] if default[:1] in "\"'" else default)
    _put_options(out, 8, field.options, FIELD_OPTIONS)
    is_optional = syntax == "proto3" and field.label == "optional" and f"_{field.name}" in oneofs
    if field.oneof or is_optional:
        _put(out, 9, oneofs[field.oneof or f"_{field.name}"])
    if "json_name" in options:
        _put(out, 10, options["json_name"][1:-1])
    if is_optional:
        _put(out, 17, 1)
    return bytes(out)


def _enum(enum: Enum) -> bytes:
    out = bytearray()
    _put(out, 1, enum.name)
    for name, number, options in enum.values:
        part = bytearray()
        _put(part, 1, name)
        _put(part, 2, number)
        _put_options(part, 3, options, VALUE_OPTIONS)
        _put(out, 2, bytes(part))
    _put_options(out, 3, enum.options, ENUM_OPTIONS)
    for first, last in enum.reserved:
        _put(out, 4, _range(first, last))
    for name in enum.reserved_names:
        _put(out, 5, name)
    return bytes(out)


def _service(service: Service, scope: str, symbols: dict[str, bool]) -> bytes:
    out = bytearray()
    _put(out, 1, service.name)
    for each in service.methods:
        part = bytearray()
        _put(part, 1, each.name)
        _put(part, 2, f".{find(each.input, scope, symbols)[0]}")
        _put(part, 3, f".{find(each.output, scope, symbols)[0]}")
        _put_options(part, 4, each.options, METHOD_OPTIONS)
        if each.client_streaming:
            _put(part, 5, 1)
        if each.server_streaming:
            _put(part, 6, 1)
        _put(out, 2, bytes(part))
    return bytes(out)


# -- reading -------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    number: int
    value: Any

    @property
    def text(self) -> str:
        return bytes(self.value).decode() if isinstance(self.value, bytes) else ""


def _unsigned(data: bytes, position: int) -> tuple[int, int]:
    signed, position = read_varlong(data, position, len(data))
    return (signed << 1 if signed >= 0 else (-signed << 1) - 1), position


def _parts(data: bytes) -> Iterator[_Part]:
    position = 0
    while position < len(data):
        key, position = _unsigned(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _unsigned(data, position)
            yield _Part(key >> 3, value)
            continue
        if kind == 2:
            size, position = _unsigned(data, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise invalid("this is not a descriptor")
        if position + size > len(data):
            raise invalid("the descriptor ends too early")
        yield _Part(key >> 3, data[position : position + size])
        position += size


def _one(data: bytes) -> dict[int, Any]:
    """Return the last part with each number."""
    return dict(_parts(data))


def _text(parts: dict[int, Any], number: int) -> str:
    return _Part(number, parts.get(number, b"")).text


def _options(data: bytes, known: Known) -> list[Option]:
    numbers = {number: (name, words) for name, (number, words) in known.items()}
    options = []
    for part in _parts(data):
        name, words = numbers.get(part.number, ("", _TEXT))
        if name and words is _TEXT:
            options.append((name, f'"{part.text}"'))
        elif name:
            word = next((word for word, number in words.items() if number == part.value), "")
            options += [(name, word)] if word else []
    return options


def read(data: bytes) -> File:
    try:
        return _read_file(data)
    except (ProtocolError, UnicodeDecodeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        raise invalid(f"this is not a FileDescriptorProto: {error}") from None


def _read_file(data: bytes) -> File:  # noqa: C901 - one branch a number
    made, paths, kinds = File(_text(_one(data), 12) or "proto2"), [], {}
    for part in _parts(data):
        match part.number:
            case 2:
                made.package = part.text
            case 3:
                paths.append(part.text)
            case 4:
                made.messages.append(_read_message(part.value, made.syntax, 0))
            case 5:
                made.enums.append(_read_enum(part.value))
            case 6:
                made.services.append(_read_service(part.value))
            case 7:
                made.extends.append(_read_extension(part.value, made.syntax))
            case 8:
                made.options = _options(part.value, FILE_OPTIONS)
            case 10 | 11:
                kinds[part.value] = "public" if part.number == 10 else "weak"
    made.imports = [(kinds.get(at, ""), path) for at, path in enumerate(paths)]
    if made.syntax not in ("proto2", "proto3") or not (made.messages or made.enums or made.services or made.extends):
        raise invalid("it must be a non-empty descriptor of proto2 or proto3")
    return made


def _read_message(data: bytes, syntax: str, depth: int) -> Message:  # noqa: C901, PLR0912 - the same
    if depth > DEPTH_MAX:
        raise invalid(f"messages are nested more than {DEPTH_MAX} deep")
    made = Message(_text(_one(data), 1))
    fields, entries = [], {}
    for part in _parts(data):
        match part.number:
            case 2:
                fields.append(_one(part.value))
            case 3:
                inner = _read_message(part.value, syntax, depth + 1)
                if ("map_entry", "true") in inner.options:
                    entries[inner.name] = inner
                else:
                    made.messages.append(inner)
            case 4:
                made.enums.append(_read_enum(part.value))
            case 5:
                bounds = _one(part.value)
                made.extension_ranges.append((bounds.get(1, 0), bounds.get(2, 0) - 1))
            case 6:
                made.extends.append(_read_extension(part.value, syntax))
            case 7:
                made.options = _options(part.value, MESSAGE_OPTIONS)
            case 8:
                made.oneofs.append(_text(_one(part.value), 1))
            case 9:
                bounds = _one(part.value)
                made.reserved.append((bounds.get(1, 0), bounds.get(2, 0) - 1))
            case 10:
                made.reserved_names.append(part.text)
    made.fields = [_read_field(field, syntax, made.oneofs, entries) for field in fields]
    used = {field.oneof for field in made.fields}
    made.oneofs = [oneof for oneof in made.oneofs if oneof in used]  # a proto3 optional has a synthetic oneof
    return made


def _read_field(parts: dict[int, Any], syntax: str, oneofs: list[str], entries: dict[str, Message]) -> Field:
    kind, type_name = parts.get(5, 0), _text(parts, 6)
    if kind == GROUP:
        raise invalid("groups are not supported")
    label = _NAMES_OF_LABELS.get(parts.get(4, 1), "")
    if syntax == "proto3" and label == "optional" and not parts.get(17):
        label = ""  # in a descriptor every field has a label
    made = Field(_text(parts, 1), parts.get(3, 0), _NAMES_OF_SCALARS.get(kind, type_name), label)
    entry = entries.get(type_name.rpartition(".")[2]) if label == "repeated" and kind == MESSAGE else None
    if entry is not None:
        made.key, made.type, made.label = entry.fields[0].type, entry.fields[1].type, ""
    if 8 in parts:
        made.options = _options(parts[8], FIELD_OPTIONS)
    if 7 in parts:
        default = _text(parts, 7)
        made.options.insert(0, ("default", f'"{default}"' if made.type in ("string", "bytes") else default))
    if 9 in parts and not parts.get(17):
        made.oneof, made.label = oneofs[parts[9]], ""
    return made


def _read_extension(data: bytes, syntax: str) -> tuple[str, Field]:
    parts = _one(data)
    return _text(parts, 2), _read_field(parts, syntax, [], {})


def _read_enum(data: bytes) -> Enum:
    made = Enum(_text(_one(data), 1))
    for part in _parts(data):
        match part.number:
            case 2:
                inner = _one(part.value)
                number = inner.get(2, 0)
                options = _options(inner.get(3, b""), VALUE_OPTIONS)
                made.values.append((_text(inner, 1), number - 2**64 if number >= 2**63 else number, options))
            case 3:
                made.options = _options(part.value, ENUM_OPTIONS)
            case 4:
                inner = _one(part.value)
                made.reserved.append((inner.get(1, 0), inner.get(2, 0)))
            case 5:
                made.reserved_names.append(part.text)
    return made


def _read_service(data: bytes) -> Service:
    made = Service(_text(_one(data), 1))
    for part in _parts(data):
        if part.number == 2:
            inner = _one(part.value)
            streams = bool(inner.get(5)), bool(inner.get(6))
            made.methods.append(Method(_text(inner, 1), _text(inner, 2), _text(inner, 3), *streams))
    return made
