"""Converts records to rows of a table.

`columns` are the table's columns, then new ones. A row always contains the record's bytes. A value that does not
match its format is null in the other columns, and counted. Does not handle: tables, files.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa

from braidlog.tables import fields
from braidlog.tables.segments import SCHEMA

SLICE_BYTES = 4 * 1024 * 1024
"""Record bytes decoded to Python objects at a time: the objects take ten times as much memory."""
FIRST_ROWS = 500


class Rows(NamedTuple):
    table: pa.Table
    undecoded: int = 0
    """The number of values that do not match the format."""


class Columns(Protocol):
    """Converts records to rows for one export."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of the whole table after adding these rows."""
        ...

    def rows(self, batches: list[pa.RecordBatch]) -> Rows: ...


class RawColumns:
    """Values as bytes, without further columns."""

    def __init__(self, columns: pa.Schema) -> None:
        self.columns = columns

    def rows(self, batches: list[pa.RecordBatch]) -> Rows:
        return Rows(pa.Table.from_batches(batches, SCHEMA))


class JsonColumns:
    """Adds a column for each field of JSON objects."""

    def __init__(self, columns: pa.Schema) -> None:
        self.columns = columns

    def rows(self, batches: list[pa.RecordBatch]) -> Rows:
        new: dict[str, pa.DataType] = {}
        known = [column for column in self.columns if column.name not in SCHEMA.names and column.type in fields.OF_JSON]
        done, undecoded = [], 0
        for rows in slices(batches):
            values = rows.column("value")
            own = pa.schema([*known, *map(pa.field, new.keys(), new.values())])
            columns = fields.parse(values, own)
            if columns is None:
                objects = fields.objects(values.to_pylist())
                undecoded += objects.count(None) - values.null_count
                fields.note_new(self.columns, new, objects)
                own = pa.schema([*known, *map(pa.field, new.keys(), new.values())])
                columns = fields.columns(objects, own)
            done.append(with_columns(rows, own, columns))
        self.columns = pa.schema([*self.columns, *map(pa.field, new.keys(), new.values())])
        # A column added by a later slice is null in earlier ones; a column that became a double is a double in all.
        return Rows(pa.concat_tables(done, promote_options="permissive"), undecoded)


def slices(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split batches. The first slices are small: fields are learned from them, so that the rest can be parsed without
    objects."""
    most = FIRST_ROWS
    for batch in batches:
        step = max(batch.num_rows * SLICE_BYTES // max(batch.nbytes, 1), 1)
        at = 0
        while at < batch.num_rows:
            yield batch.slice(at, min(step, most))
            at += min(step, most)
            most *= 10


def with_columns(rows: pa.RecordBatch, own: pa.Schema, columns: list[pa.Array]) -> pa.Table:
    return pa.Table.from_arrays([*rows.columns, *columns], schema=pa.schema([*SCHEMA, *own]))
