"""Rows into a table by key: those that are there are replaced, the others added.

Knows: what a batch of rows must be so that its commit has one outcome. Refuses to know: table formats, Spark.
Invariant: a key is in a batch once; (sink, batch) changes the table once, as any change does.
"""

from collections.abc import Sequence

import pyarrow as pa

from braidlog.spark.lake.contract import Table
from braidlog.spark.lake.errors import LakeError
from braidlog.spark.lake.schemas import table_schema
from braidlog.spark.lake.written import Change


def upsert_rows(
    table: Table, rows: pa.Table, keys: Sequence[str], sink: str, batch: int, *, merge_schema: bool = False
) -> bool:
    """False if the table had this sink's batch already."""
    if rows.num_rows == 0:
        return False
    _check_keys(table, rows, keys)
    schema = table.prepare(table_schema(rows.schema), (), merge_schema=merge_schema)
    change = Change((), schema, sink, batch, merge_schema=merge_schema)
    return table.upsert(change, rows.cast(schema), keys)


def _check_keys(table: Table, rows: pa.Table, keys: Sequence[str]) -> None:
    for name in keys:
        if rows.column(name).null_count:
            raise LakeError(f"{table.title}: column {name!r} is a key and null in a row: leave such rows out")
    if rows.select(keys).group_by(list(keys)).aggregate([]).num_rows < rows.num_rows:
        raise LakeError(
            f"{table.title}: a key ({', '.join(keys)}) is in the batch more than once: say which row counts, order=COLUMN"
        )
