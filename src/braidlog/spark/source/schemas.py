"""The schema with which a query's values are read, and readers for values that were written with other schemas.

Does not handle: Spark, records. The reader's schema is resolved once per query, on the driver, and sent to tasks.
Writers' schemas are looked up by the ids in the values, once per process, because an id never changes its meaning. An
unreachable registry fails the query; an unknown id is a bad record.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
import pyarrow as pa

from braidlog.client.errors import Refusal, RefusedError
from braidlog.client.schema_registry import RegistryClient
from braidlog.registry import framing
from braidlog.registry.errors import ColumnTypeError, RegistryError
from braidlog.registry.framed_columns import Framed
from braidlog.registry.protobuf.schema import name_at
from braidlog.registry.schemas import AVRO, JSON, PROTOBUF, AvroSchema, JsonSchema, ProtobufSchema, Schema, referenced
from braidlog.registry.value_columns import Decode, Errors
from braidlog.spark.options import OptionError
from braidlog.spark.source.options import Query

_TYPES: Final = {"avro": AVRO, "json": JSON, "protobuf": PROTOBUF}
_EXTRA: Final = "pip install 'braidlog[schemas]'"
_SCHEMAS_MAX: Final = 10_000

Parse = Callable[[pa.Array], tuple[pa.Array, Errors]]


class Reading(msgspec.Struct, frozen=True):
    """The reader's schema. `registry`: that of the writers' schemas; without it values do not begin with an id."""

    schema: Schema
    references: dict[str, Schema]
    name: str
    """Its name in errors."""
    message: str
    registry: str | None


def registry_client(url: str) -> RegistryClient:
    """Return a client; the address may contain name and secret, like a node's URL."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    bare = urlunsplit((parts.scheme, host, parts.path, "", ""))
    return RegistryClient(bare, unquote(parts.username or ""), unquote(parts.password or ""))


def find_reading(query: Query) -> Reading | None:
    """Return the reader's schema of a query; None if its values need none, or if it is given as DDL."""
    if query.schema_registry is None and query.value_schema_file is None:
        return None
    kind, registry = _TYPES[query.value_format], query.schema_registry
    client = None if registry is None else registry_client(registry)
    if query.value_schema_file is not None:
        name, schema = query.value_schema_file, _read_file(query.value_schema_file, kind)
    else:
        assert client is not None, "the options require one of the two"
        subject = _subject(query)
        name = f"{subject} version {query.value_version}"
        _, schema = client.version(subject, query.value_version)
    if schema.type != kind:
        raise OptionError("valueFormat", query.value_format, f"{name} has type {schema.type}")
    try:
        references = referenced(schema, client.find) if client is not None else {}
        made = Reading(schema, references, name, query.value_message or "", registry)
        reader(made)
    except (RegistryError, ColumnTypeError) as error:
        raise OptionError("valueFormat", query.value_format, f"{name}: {error}") from None
    return made


def _read_file(path: str, kind: str) -> Schema:
    try:
        return Schema(Path(path).read_text(encoding="utf-8"), kind)
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError("valueSchemaFile", path, f"the driver cannot read it: {error}") from None


def _subject(query: Query) -> str:
    if query.value_subject is not None:
        return query.value_subject
    topics = {*query.selection.topics, *(topic for topic, _ in query.selection.places)}
    if len(topics) != 1:
        raise OptionError(
            "valueSubject", None, "it must be set if several topics may be read: one schema reads all of them"
        )
    return f"{topics.pop()}-value"


# -- readers, one for each format --------------------------------------------------------------------------------------


class AvroReader:
    type = AVRO

    def __init__(self, reading: Reading) -> None:
        self._columns = _avro_columns()
        self._root = AvroSchema(reading.schema.text, reading.references).root

    def column_type(self, target: pa.DataType | None = None) -> pa.DataType:
        return self._columns.column_type(self._root, target)

    def own(self, kind: pa.DataType) -> Decode:
        """Decode values that were written with this schema."""
        decode: Decode = self._columns.decoder(self._root, self._root, kind)
        return decode

    def of(self, writer: Schema, references: dict[str, Schema], head: bytes, kind: pa.DataType) -> Decode:  # noqa: ARG002
        """Decode values that were written with another schema."""
        decode: Decode = self._columns.decoder(self._root, AvroSchema(writer.text, references).root, kind)
        return decode


class ProtobufReader:
    type = PROTOBUF

    def __init__(self, reading: Reading) -> None:
        columns = _proto_columns()
        schema = ProtobufSchema(reading.schema.text, reading.references)
        self._message = columns.MessageColumns(schema, reading.references, reading.message)

    def column_type(self, target: pa.DataType | None = None) -> pa.DataType:
        return self._message.column_type(target)

    def own(self, kind: pa.DataType) -> Decode:
        decode: Decode = self._message.decoder(kind)
        return decode

    def of(self, writer: Schema, references: dict[str, Schema], head: bytes, kind: pa.DataType) -> Decode:
        """Decode values of another schema: fields match by number, but only within the same message."""
        name = name_at(ProtobufSchema(writer.text, references).file, framing.read_indexes(head)[0])
        if name != self._message.name:
            raise ColumnTypeError(f"message {name or 'that its schema lacks'!r}; {self._message.name!r} is expected")
        return self.own(kind)


class JsonReader:
    """JSON values are decoded to the columns of the schema in `values.py`."""

    def __init__(self, reading: Reading) -> None:
        self._document = JsonSchema(reading.schema.text, reading.references).document
        self._references = {name: msgspec.json.decode(each.text) for name, each in reading.references.items()}

    def column_type(self, target: pa.DataType | None = None) -> pa.DataType:
        from braidlog.registry.json_schema.columns import column_type  # noqa: PLC0415 - beside those of the others

        return column_type(self._document, self._references, target)


def _avro_columns() -> Any:  # noqa: ANN401 - a module
    try:
        from braidlog.registry.avro import columns as avro_columns  # noqa: PLC0415 - fastavro is an extra
    except ModuleNotFoundError as error:
        raise OptionError("valueFormat", "avro", f"{error.name} is not installed: {_EXTRA}") from None
    return avro_columns


def _proto_columns() -> Any:  # noqa: ANN401 - a module
    try:
        from braidlog.registry.protobuf import columns as proto_columns  # noqa: PLC0415 - Google's library is an extra
    except ModuleNotFoundError as error:
        raise OptionError("valueFormat", "protobuf", f"{error.name} is not installed: {_EXTRA}") from None
    return proto_columns


_READERS: Final[dict[str, Any]] = {AVRO: AvroReader, JSON: JsonReader, PROTOBUF: ProtobufReader}


def reader(reading: Reading) -> AvroReader | ProtobufReader | JsonReader:
    made: AvroReader | ProtobufReader | JsonReader = _READERS[reading.schema.type](reading)
    return made


# -- values ------------------------------------------------------------------------------------------------------------


def parser(reading: Reading, kind: pa.DataType) -> Parse:
    """Return a parser of Avro or Protobuf values for a column type."""
    made = reader(reading)
    assert not isinstance(made, JsonReader), "values.py reads JSON"
    made.column_type(kind)  # raises now, not at the first value
    if reading.registry is not None:
        return _of_writers(made, reading.registry, kind)
    own = made.own(kind)
    return lambda values: own(values.to_pylist())


def _of_writers(made: AvroReader | ProtobufReader, registry: str, kind: pa.DataType) -> Framed:
    def find(head: bytes) -> Decode:
        try:
            writer, references = _written_with(registry, framing.id_of(head))
        except RefusedError as error:
            if error.reason is not Refusal.INVALID:
                raise
            raise ColumnTypeError("not in the registry") from None
        return made.of(writer, references, head, kind)

    return Framed(made.type, kind, find)


@lru_cache(maxsize=_SCHEMAS_MAX)
def _written_with(registry: str, number: int) -> tuple[Schema, dict[str, Schema]]:
    """Return the schema of an id, with all its references."""
    client = registry_client(registry)
    schema = client.schema(number)
    return schema, referenced(schema, client.find)


# -- Spark's types
# -------------------------------------------------------------------------------------------------------


def ddl(kind: pa.DataType) -> str:
    """Return a column's type as Spark DDL."""
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{_quoted(each.name)}: {ddl(each.type)}' for each in kind)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{ddl(kind.key_type)}, {ddl(kind.item_type)}>"
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - Spark's own table

    return from_arrow_type(kind).simpleString().upper()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
