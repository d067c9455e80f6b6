"""Columns of values that have schemas in the registry: Avro and Protobuf with Confluent's wire format.

Does not handle: tables, reading the log of schemas. A value is decoded with the schema that wrote it, so that a row
does not depend on the time of its export. Columns are the fields of the newest schema, and those that the table has.
A column grows by Iceberg's rules; otherwise it keeps its type, and values that do not fit are null.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import TableForm
from braidlog.registry import framing
from braidlog.registry.errors import ColumnTypeError, RegistryError
from braidlog.registry.framed_columns import Framed
from braidlog.registry.protobuf.schema import name_at
from braidlog.registry.registry_state import Entry, State
from braidlog.registry.schemas import AVRO, PROTOBUF, AvroSchema, ProtobufSchema, Schema, referenced
from braidlog.registry.value_columns import Decode, Errors
from braidlog.tables import fields
from braidlog.tables.evolution import fitted, grown, storable
from braidlog.tables.segments import SCHEMA
from braidlog.tables.values import Rows, slices, with_columns

FORMATS: Final = {TableForm.AVRO: AVRO, TableForm.PROTOBUF: PROTOBUF}
Types = dict[str, pa.DataType]


class TypedColumns:
    """The columns of one export. `entries`: the part of the log of schemas that concerns the topic's subject."""

    def __init__(self, form: TableForm, subject: str, entries: Iterable[Entry], columns: pa.Schema) -> None:
        self._format = FORMATS[form]
        self._state = State()
        self._state.apply(entries)
        self._schemas = {each.id: each.schema for each in self._state.versions(subject, deleted=True)}
        self._message = ""
        """Protobuf: the full name of the message whose fields are columns; the first of a file if no schema is
        left."""
        self.columns = pa.schema(_with_new(columns, self._newest(subject)))
        self._own = pa.schema(
            [
                column
                for column in self.columns
                if column.name not in SCHEMA.names and storable(column.type) == column.type
            ]
        )
        self._row = pa.struct(list(self._own))
        self._read = Framed(self._format, self._row, self._reader)

    def rows(self, batches: list[pa.RecordBatch]) -> Rows:
        done, undecoded = [], 0
        if not len(self._own):  # no schema, or only schemas without a record: nothing is decoded
            return Rows(table := pa.Table.from_batches(batches, SCHEMA), len(table) - table["value"].null_count)
        for rows in slices(batches):
            found, errors = self._read(rows.column("value"))
            undecoded += len(errors) - errors.count(None)
            done.append(with_columns(rows, self._own, found.flatten()))
        return Rows(pa.concat_tables(done), undecoded)

    def _newest(self, subject: str) -> Types:
        listed = self._state.versions(subject, deleted=False)
        try:
            if not listed:
                return {}
            source = self._source(listed[-1].schema)
            self._message = source.name
        except (RegistryError, ColumnTypeError):
            return {}  # its values count as undecoded; values of other schemas are still decoded
        return source.types

    def _reader(self, head: bytes) -> Decode:
        """Return the decoder to `_row` for a value prefix."""
        schema = self._schemas.get(framing.id_of(head))
        if schema is None:
            raise ColumnTypeError("not of the topic's subject")
        source = self._source(schema, head)
        if self._message and source.name != self._message:
            raise ColumnTypeError(f"message {source.name!r}; columns are those of {self._message!r}")
        from_columns = _by_column(source.types)
        names = [name for name in self._own.names if name in from_columns]
        target = pa.struct([pa.field(from_columns[name], source.types[from_columns[name]]) for name in names])
        decode = source.decoder(target)

        def read(payloads: list[bytes | None]) -> tuple[pa.Array, Errors]:
            column, errors = decode(payloads)
            if names:
                column = pa.StructArray.from_arrays(column.flatten(), names, mask=column.is_null())
            return fitted(column, self._row), errors

        return read

    def _source(self, schema: Schema, head: bytes = b"") -> "_Source":
        if schema.type != self._format:
            raise ColumnTypeError(f"of type {schema.type}")
        source = (_avro if self._format == AVRO else _protobuf)(schema, referenced(schema, self._state.find), head)
        if not source.types:
            raise ColumnTypeError("not a record with a field that can be a column")
        return source


def _with_new(columns: pa.Schema, newest: Types) -> list[pa.Field]:
    """Return a table's columns, grown by a schema, and the columns that it adds."""
    grown_fields = {each.name: each for each in columns}
    taken = {name.lower() for name in grown_fields}
    for column, field in _by_column(newest).items():
        kind = newest[field]
        if column in grown_fields and column not in SCHEMA.names:
            grown_fields[column] = grown_fields[column].with_type(grown(grown_fields[column].type, kind))
        elif column.lower() not in taken and fields.is_name(column) and len(grown_fields) < fields.FIELDS_MAX:
            taken.add(column.lower())
            grown_fields[column] = pa.field(column, kind)
    return list(grown_fields.values())


def _by_column(types: Types) -> dict[str, str]:
    """Return each column's field: the first if there are two."""
    by_column: dict[str, str] = {}
    for field in types:
        by_column.setdefault(fields.column_of(field), field)
    return by_column


# -- formats -----------------------------------------------------------------------------------------------------------


class _Source:
    """A schema, or a message of one."""

    def __init__(self, name: str, types: Types, decoder: Callable[[pa.DataType], Decode]) -> None:
        self.name = name
        self.types = {name: kind for name, its in types.items() if (kind := storable(its)) is not None}
        self.decoder = decoder


def _avro(schema: Schema, references: dict[str, Schema], head: bytes) -> _Source:  # noqa: ARG001 - only Protobuf needs it
    columns = _module("avro_columns")
    root = AvroSchema(schema.text, references).root
    return _Source("", columns.field_types(root), lambda wanted: columns.decoder(root, root, wanted))


def _protobuf(schema: Schema, references: dict[str, Schema], head: bytes) -> _Source:
    columns = _module("proto_columns")
    parsed = ProtobufSchema(schema.text, references)
    indexes = framing.read_indexes(head)[0] if head else (0,)
    name = name_at(parsed.file, indexes)
    if not name:
        raise ColumnTypeError(f"no message at {indexes}")
    message = columns.MessageColumns(parsed, references, name)
    return _Source(name, message.field_types(), message.decoder)


def _module(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        if name == "avro_columns":
            from braidlog.registry.avro import columns as found  # noqa: PLC0415 - fastavro is an extra
        else:
            from braidlog.registry.protobuf import columns as found  # type: ignore[no-redef] # noqa: PLC0415 - Google's library is one
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        said = f"{package} is not installed where the node runs: pip install 'braidlog[schemas]'"
        raise BrokerError(Reason.UNAVAILABLE, said) from error
    return found
