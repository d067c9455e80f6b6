"""Columns of values with registered schemas: Avro and Protobuf in Confluent's wire format.

Invariants: a value is read with the schema that wrote it, so a row does not depend on the time of its export. The
columns are the table's and the fields of the newest schema. A column's type evolves within Iceberg's rules, or stays; a
value that does not fit is null there.
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
    """The columns of one export. `entries`: the schema log's records about the topic's subject."""

    def __init__(self, form: TableForm, subject: str, entries: Iterable[Entry], columns: pa.Schema) -> None:
        self._format = FORMATS[form]
        self._state = State()
        self._state.apply(entries)
        self._schemas = {each.id: each.schema for each in self._state.versions(subject, deleted=True)}
        self._message = ""
        """Protobuf: the full name of the message whose fields are columns; empty without a schema."""
        self.columns = pa.schema(_with_new(columns, self._newest(subject)))
        self._own = pa.schema(
            [each for each in self.columns if each.name not in SCHEMA.names and storable(each.type) == each.type]
        )
        self._row = pa.struct(list(self._own))
        self._read = Framed(self._format, self._row, self._reader)

    def rows(self, batches: list[pa.RecordBatch]) -> Rows:
        done, undecoded = [], 0
        if not len(self._own):  # no schema, or no record type: nothing can be decoded
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
            return {}  # its values count as undecoded; older schemas still work
        return source.types

    def _reader(self, head: bytes) -> Decode:
        """Return the decoder into `_row` for values with this head."""
        schema = self._schemas.get(framing.id_of(head))
        if schema is None:
            raise ColumnTypeError("not of the topic's subject")
        source = self._source(schema, head)
        if self._message and source.name != self._message:
            raise ColumnTypeError(f"message {source.name!r}; columns are those of {self._message!r}")
        from_columns = _by_column(source.types)
        names = [each for each in self._own.names if each in from_columns]
        wanted = pa.struct([pa.field(from_columns[each], source.types[from_columns[each]]) for each in names])
        decode = source.decoder(wanted)

        def read(payloads: list[bytes | None]) -> tuple[pa.Array, Errors]:
            found, errors = decode(payloads)
            if names:
                found = pa.StructArray.from_arrays(found.flatten(), names, mask=found.is_null())
            return fitted(found, self._row), errors

        return read

    def _source(self, schema: Schema, head: bytes = b"") -> "_Source":
        if schema.type != self._format:
            raise ColumnTypeError(f"of type {schema.type}")
        found = (_avro if self._format == AVRO else _protobuf)(schema, referenced(schema, self._state.find), head)
        if not found.types:
            raise ColumnTypeError("no record with a field that can be a column")
        return found


def _with_new(columns: pa.Schema, newest: Types) -> list[pa.Field]:
    """Return the table's columns, evolved for the newest schema, and the columns that it adds."""
    found = {each.name: each for each in columns}
    taken = {name.lower() for name in found}
    for column, field in _by_column(newest).items():
        kind = newest[field]
        if column in found and column not in SCHEMA.names:
            found[column] = found[column].with_type(grown(found[column].type, kind))
        elif column.lower() not in taken and fields.is_name(column) and len(found) < fields.FIELDS_MAX:
            taken.add(column.lower())
            found[column] = pa.field(column, kind)
    return list(found.values())


def _by_column(types: Types) -> dict[str, str]:
    """Return the field of each column; of two fields with the same column, the first."""
    found: dict[str, str] = {}
    for field in types:
        found.setdefault(fields.column_of(field), field)
    return found


# -- formats -----------------------------------------------------------------------------------------------------------


class _Source:
    """A schema, or one message of a schema."""

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
