"""Upserts rows into a table by key: replaces existing rows, adds the others.

A key must occur once in a batch; (sink, batch) changes the table once, like any change. Does not handle: table
formats, Spark.
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
    """Upsert rows; return False if the table already has this sink's batch."""
    if rows.num_rows == 0:
        return False
    _check_keys(table, rows, keys)
    schema = table.prepare(table_schema(rows.schema), (), merge_schema=merge_schema)
    change = Change((), schema, sink, batch, merge_schema=merge_schema)
    return table.upsert(change, rows.cast(schema), keys)


def _check_keys(table: Table, rows: pa.Table, keys: Sequence[str]) -> None:
    for name in keys:
        if rows.column(name).null_count:
            raise LakeError(f"{table.title}: key column {name!r} is null in a row: filter out such rows")
    if rows.select(keys).group_by(list(keys)).aggregate([]).num_rows < rows.num_rows:
        raise LakeError(
            f"{table.title}: a key ({', '.join(keys)}) occurs more than once in the batch: choose the row with order=COLUMN"
        )
