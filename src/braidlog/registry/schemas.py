"""Schemas of all types behind one interface: parse, compare, format.

`text` is what is stored and returned; two schemas of a subject are the same if their `identity` is. Does not handle:
subjects, versions, storage.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from braidlog.registry.avro import avro_compatibility
from braidlog.registry.avro import schema as avro
from braidlog.registry.errors import Code, RegistryError, invalid
from braidlog.registry.json_schema import json_compatibility
from braidlog.registry.protobuf import descriptor, proto_compatibility
from braidlog.registry.protobuf import schema as proto
from braidlog.registry.protobuf import text as proto_text

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
TYPES: Final = (JSON, PROTOBUF, AVRO)
TEXT_BYTES_MAX: Final = 1024 * 1024
REFERENCES_MAX: Final = 100
"""Maximum nesting of a schema, including its references."""
REFERENCED_CHARACTERS_MAX: Final = 4 * 1024 * 1024
"""Maximum length of all referenced schemas together."""
SERIALIZED: Final = "serialized"


class Reference(msgspec.Struct, frozen=True):
    """`name` is the name that the schema uses for the other one: a type name, an address, an import path."""

    name: str
    subject: str
    version: int


class Schema(msgspec.Struct, frozen=True):
    """A schema as it is stored."""

    text: str
    type: str = AVRO
    references: tuple[Reference, ...] = ()


Find = Callable[[Reference], Schema]
"""Returns the schema of a reference; raises if there is none."""


class Parsed(Protocol):
    """A parsed schema of any type."""

    @property
    def text(self) -> str: ...

    @property
    def identity(self) -> str:
        """A digest that equivalent schemas share."""
        ...

    def misfits(self, writer: Any) -> list[str]:  # noqa: ANN401 - one of the same type
        """Return why data of another schema cannot be read with this one."""
        ...

    def formatted(self, format_: str) -> str: ...


class AvroSchema:
    def __init__(self, text: str, references: Mapping[str, Schema]) -> None:
        known: dict[str, avro.Type] = {}
        for reference in references.values():
            known.update(avro.parse(reference.text, known).names)
        read = avro.parse(text, known)
        self.root = read.root
        self.text = read.canonical
        self.identity = _digest(_encoded(self.text))

    def misfits(self, writer: "AvroSchema") -> list[str]:
        return avro_compatibility.misfits(self.root, writer.root)

    def formatted(self, format_: str) -> str:  # noqa: ARG002 - there is only one format
        return self.text


class JsonSchema:
    def __init__(self, text: str, references: Mapping[str, Schema]) -> None:
        self.document = _json(text)
        faults = json_compatibility.faults(self.document)
        if faults:
            raise invalid("; ".join(faults[:5]))
        self.text = json.dumps(self.document, separators=(",", ":"), ensure_ascii=False)
        self.identity = _digest(_encoded(self.text))
        self._references = {name: _json(each.text) for name, each in references.items()}

    def misfits(self, writer: "JsonSchema") -> list[str]:
        others = {**writer._references, **self._references}  # noqa: SLF001 - one of ours
        return json_compatibility.misfits(self.document, writer.document, others.get)

    def formatted(self, format_: str) -> str:  # noqa: ARG002 - there is only one format
        return self.text


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise invalid("it contains an unpaired surrogate, which is not a character") from None


def _json(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise invalid("this is not JSON") from None


class ProtobufSchema:
    def __init__(self, text: str, references: Mapping[str, Schema]) -> None:
        self._imported: proto.Symbols = {}
        for reference in references.values():
            self._imported |= proto.symbols_of(_proto(reference.text)[0])
        self.file, is_text = _proto(text)
        unknown = [
            path for _, path in self.file.imports if not path.startswith(proto.KNOWN_FILES) and path not in references
        ]
        if unknown:
            raise invalid(f"import {unknown[0]!r}: add a reference to the schema that defines it")
        proto.resolve(self.file, self._imported)
        self.text = text if is_text else proto_text.write(self.file)
        self.identity = _digest(descriptor.write(self.file, "", self._imported))

    def misfits(self, writer: "ProtobufSchema") -> list[str]:
        return proto_compatibility.misfits(self.file, writer.file)

    def formatted(self, format_: str) -> str:
        if format_ != SERIALIZED:
            return self.text
        return base64.b64encode(descriptor.write(self.file, "default", self._imported)).decode()


def _proto(text: str) -> tuple[proto.File, bool]:
    """Parse a file as text, or as a descriptor in base64 (sent by Confluent's clients for languages without a
    compiler)."""
    try:
        return proto_text.read(text), True
    except RegistryError as error:
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise error from None
        return descriptor.read(data), False


_CLASSES: Final[Mapping[str, Callable[[str, Mapping[str, Schema]], Parsed]]] = {
    AVRO: AvroSchema,
    JSON: JsonSchema,
    PROTOBUF: ProtobufSchema,
}


def check_text(schema: Schema) -> None:
    """Raise INVALID_SCHEMA for an unknown type, and for a text that is empty or too long."""
    if schema.type not in _CLASSES:
        raise invalid(f"unknown type {schema.type[:40]!r}: use {', '.join(sorted(_CLASSES))}")
    if not schema.text.strip():
        raise invalid("an empty schema")
    if len(schema.text.encode()) > TEXT_BYTES_MAX:
        raise invalid(f"longer than {TEXT_BYTES_MAX} bytes")


def read(schema: Schema, referenced: Mapping[str, Schema]) -> Parsed:
    """Parse a schema of a known type, with all its references."""
    try:
        return _CLASSES[schema.type](schema.text, referenced)
    except RecursionError:
        raise invalid("types are nested too deep") from None


def referenced(schema: Schema, find: Find) -> dict[str, Schema]:
    """Return all schemas to which a schema refers, by name, innermost first."""
    schemas: dict[str, Schema] = {}

    def walk(one: Schema, under_way: tuple[str, ...]) -> None:
        for each in one.references:
            if each.name in under_way:
                raise invalid(f"reference {each.name!r} is circular")
            if each.name in schemas:
                continue
            try:
                other = find(each)
            except RegistryError as error:
                where = f"subject {each.subject!r}, version {each.version}"
                raise RegistryError(Code.INVALID_SCHEMA, f"No schema reference found for {where}: {error}") from None
            if other.type != schema.type:
                raise invalid(f"reference {each.name!r} is of type {other.type}")
            walk(other, (*under_way, each.name))
            schemas[each.name] = other
            if len(schemas) > REFERENCES_MAX:
                raise invalid(f"more than {REFERENCES_MAX} references")
            if sum(len(other.text) for other in schemas.values()) > REFERENCED_CHARACTERS_MAX:
                raise invalid(f"references of more than {REFERENCED_CHARACTERS_MAX} characters together")

    walk(schema, ())
    return schemas
