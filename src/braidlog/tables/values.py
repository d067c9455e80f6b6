"""Rows of a table out of records: what of their values becomes columns.

Knows: which columns a table has and gets. Refuses to know: tables, files.
Invariant: `columns` are those that the table had, and new ones after them; a row has every record's bytes as they are, whatever
becomes of its value. A value that is none of its form is null in the columns, and counted.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa

from braidlog.tables import fields
from braidlog.tables.segments import SCHEMA

SLICE_BYTES = 4 * 1024 * 1024
"""Of records whose values are Python's objects at the same time: those take ten times as much."""
FIRST_ROWS = 500


class Rows(NamedTuple):
    table: pa.Table
    undecoded: int = 0
    """Values among them that are none of the form."""


class Columns(Protocol):
    """What makes rows of one turn."""

    @property
    def columns(self) -> pa.Schema:
        """Of the whole table, when these rows are in it."""
        ...

    def rows(self, batches: list[pa.RecordBatch]) -> Rows: ...


class RawColumns:
    """Values as they are."""

    def __init__(self, columns: pa.Schema) -> None:
        self.columns = columns

    def rows(self, batches: list[pa.RecordBatch]) -> Rows:
        return Rows(pa.Table.from_batches(batches, SCHEMA))


class JsonColumns:
    """Fields of JSON objects, too: a column for each that is seen."""

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
        # A column that came with a later slice is null in those before; one that became a double there is one in all.
        return Rows(pa.concat_tables(done, promote_options="permissive"), undecoded)


def slices(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first ones are small: from them fields are learned, for the others to be parsed at once."""
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
