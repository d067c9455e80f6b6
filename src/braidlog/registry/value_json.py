"""Shows values with a schema as JSON for people.

Does not handle: columns, finding schemas. A value is decoded completely with the schema of its id, or not at all,
with an error that says why. The decoder of each schema is built once. Protobuf fields have the names in their file,
and all are shown. Avro times are encoded numbers. Avro bytes are text if they are UTF-8, else `{"base64": "..."}`;
unions are shown as their value.
"""

import base64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from braidlog.registry import framing
from braidlog.registry.errors import WHY_CHARS_MAX, ColumnTypeError, RegistryError
from braidlog.registry.protobuf.schema import name_at
from braidlog.registry.schemas import AVRO, PROTOBUF, AvroSchema, Find, ProtobufSchema, Schema, referenced

KNOWN_MAX: Final = 1000
VALUE_BYTES_MAX: Final = 1024 * 1024
"""Longer values are not decoded: they are too large to read."""

Read = Callable[[bytes], Any]
"""Converts a payload to JSON-compatible objects; `ValueError` if it does not match its schema."""


class UndecodedError(ValueError):
    """The reason why a value cannot be decoded."""


class SchemaValues:
    """Decodes values to JSON. `schema_of` returns a schema by id, `find` a referenced schema; both raise
    `RegistryError`."""

    def __init__(self, schema_of: Callable[[int], Schema], find: Find) -> None:
        self._schema_of = schema_of
        self._find = find
        self._known: dict[bytes, Read] = {}

    def json_of(self, value: bytes) -> bytes:
        """Return a value as JSON. Raises `UndecodedError`."""
        try:
            return self._json_of(value)
        except framing.FramingError as error:
            raise UndecodedError(str(error)) from None
        except (RegistryError, ValueError, TypeError, RecursionError) as error:
            raise UndecodedError(f"schema {framing.id_of(value)}: {error}"[:WHY_CHARS_MAX]) from None
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            raise UndecodedError(f"{missing} is not installed: pip install 'braidlog[schemas]'") from None

    def _json_of(self, value: bytes) -> bytes:
        number = framing.id_of(value)
        if len(value) > VALUE_BYTES_MAX:
            raise UndecodedError(f"longer than {VALUE_BYTES_MAX} bytes")
        head = value[: framing.BYTES]
        read = self._known.get(head)
        if read is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            read = self._known[head] = self._reader(self._schema_of(number))
        return msgspec.json.encode(read(value[framing.BYTES :]))

    def _reader(self, schema: Schema) -> Read:
        references = referenced(schema, self._find)
        if schema.type == AVRO:
            return _avro_reader(AvroSchema(schema.text, references))
        if schema.type == PROTOBUF:
            return _proto_reader(ProtobufSchema(schema.text, references), references)
        return msgspec.json.decode


def _avro_reader(schema: AvroSchema) -> Read:
    from braidlog.registry.avro import values  # noqa: PLC0415 - fastavro is an extra

    values.check_bounded(schema.root, schema.root.short_name)
    theirs = values.parsed(schema.root)

    def read(payload: bytes) -> Any:  # noqa: ANN401 - JSON
        errors: list[str | None] = [None]
        decoded = values.decoded([payload], theirs, None, errors)
        if errors[0] is not None:
            raise ValueError(errors[0])
        return _shown(decoded[0])

    return read


def _shown(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Convert fastavro's result, with bytes as text if possible; msgspec encodes decimals unchanged."""
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value


def _proto_reader(schema: ProtobufSchema, references: dict[str, Schema]) -> Read:
    from google.protobuf import json_format  # noqa: PLC0415 - Google's library is an extra

    from braidlog.registry.protobuf.messages import MessageType  # noqa: PLC0415 - the same

    known: dict[tuple[int, ...], MessageType] = {}

    def read(payload: bytes) -> Any:  # noqa: ANN401 - JSON
        indexes, at = framing.read_indexes(payload, 0)
        if indexes not in known:
            name = name_at(schema.file, indexes)
            if not name:
                raise ColumnTypeError(f"no message at {indexes}")
            known[indexes] = MessageType(schema, references, name)
        message = known[indexes]
        errors: list[str | None] = [None]
        parsed = message.parsed([payload[at:]], errors)
        if errors[0] is not None:
            raise ValueError(errors[0])
        return json_format.MessageToDict(
            parsed[0],
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=message.pool,
        )

    return read
