"""Converts records to rows of a table, with columns from their values.

Invariants: `columns` are the table's columns followed by new ones. A row keeps its record's bytes unchanged. A value
that does not have the topic's form is null in the columns, and counted.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa

from braidlog.tables import fields
from braidlog.tables.segments import SCHEMA

SLICE_BYTES = 4 * 1024 * 1024
"""Bytes of records whose values are Python objects at a time; the objects use ten times as much memory."""
FIRST_ROWS = 500


class Rows(NamedTuple):
    table: pa.Table
    undecoded: int = 0
    """Values that do not have the topic's form."""


class Columns(Protocol):
    """Converts the records of one export to rows."""

    @property
    def columns(self) -> pa.Schema:
        """Columns of the whole table, including those of these rows."""
        ...

    def rows(self, batches: list[pa.RecordBatch]) -> Rows: ...


class RawColumns:
    """Exports values unchanged, without columns of their own."""

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
        known = [each for each in self.columns if each.name not in SCHEMA.names and each.type in fields.OF_JSON]
        done, undecoded = [], 0
        for rows in slices(batches):
            values = rows.column("value")
            own = pa.schema([*known, *map(pa.field, new.keys(), new.values())])
            found = fields.parse(values, own)
            if found is None:
                objects = fields.objects(values.to_pylist())
                undecoded += objects.count(None) - values.null_count
                fields.note_new(self.columns, new, objects)
                own = pa.schema([*known, *map(pa.field, new.keys(), new.values())])
                found = fields.columns(objects, own)
            done.append(with_columns(rows, own, found))
        self.columns = pa.schema([*self.columns, *map(pa.field, new.keys(), new.values())])
        # A column from a later slice is null in earlier ones; one that became a double is a double in all.
        return Rows(pa.concat_tables(done, promote_options="permissive"), undecoded)


def slices(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield slices, small ones first: they reveal the fields with which later ones are parsed in one step."""
    most = FIRST_ROWS
    for batch in batches:
        step = max(batch.num_rows * SLICE_BYTES // max(batch.nbytes, 1), 1)
        at = 0
        while at < batch.num_rows:
            yield batch.slice(at, min(step, most))
            at += min(step, most)
            most *= 10


def with_columns(rows: pa.RecordBatch, own: pa.Schema, found: list[pa.Array]) -> pa.Table:
    return pa.Table.from_arrays([*rows.columns, *found], schema=pa.schema([*SCHEMA, *own]))
