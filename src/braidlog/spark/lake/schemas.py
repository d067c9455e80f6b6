"""Table schemas: converts Spark's schemas for all table formats, and checks schema changes.

A table's column never changes its type; columns are only added, and every column is nullable. Does not handle: table
formats, files.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa


class SchemaError(ValueError):
    """The rows do not fit the table."""


Kinds = Mapping[pa.DataType, pa.DataType]


def table_schema(schema: pa.Schema, wider: Kinds | None = None) -> pa.Schema:
    """Return the schema for tables: times in UTC (Spark uses the session's zone), everything nullable, no metadata.

    `wider`: replacements for types that a kind of table lacks.
    """
    kinds = {**_NARROW, **(wider or {})}
    return pa.schema([pa.field(field.name, _plain(field.type, kinds)) for field in schema])


def _plain(kind: pa.DataType, kinds: Kinds) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _plain(part.type, kinds)) for part in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type, kinds), _plain(kind.item_type, kinds))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type, kinds)))
    return kinds.get(kind, kind)


# Spark may use Arrow's large types; tables have one string type.
_NARROW = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def merged_schema(old: pa.Schema | None, new: pa.Schema, *, merge: bool) -> pa.Schema:
    """Return the table's schema after adding rows of `new`; `SchemaError` if they do not fit. Columns missing in
    `new` become null."""
    if old is None:
        return new
    for field in new:
        if field.name in old.names and old.field(field.name).type != field.type:
            raise SchemaError(
                f"column {field.name!r} is {old.field(field.name).type} in the table and {field.type} in the rows: "
                "a column's type cannot change; cast it"
            )
    added = [field for field in new if field.name not in old.names]
    if added and not merge:
        names = ", ".join(repr(field.name) for field in added)
        raise SchemaError(
            f'the table has no column {names}; option mergeSchema=true adds it (in a pipeline, [tables] evolution = "add")'
        )
    return pa.schema([*old, *added])


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with all columns of `schema`; missing columns are null."""
    columns = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_partitions(schema: pa.Schema, partition_by: Sequence[str], known: Sequence[str] | None) -> None:
    """Refuse partition columns that cannot be folder names, and a partitioning other than the table's."""
    if known is not None and tuple(known) != tuple(partition_by):
        raise SchemaError(f"the table is partitioned by {list(known)}, not by {list(partition_by)}")
    for name in partition_by:
        if name not in schema.names:
            raise SchemaError(f"partitionBy: unknown column {name!r}")
        kind = schema.field(name).type
        if not any(test(kind) for test in _PARTITIONABLE):
            raise SchemaError(f"partitionBy: {name!r} is {kind}; use text, integer, date or boolean columns")
    if partition_by and len(partition_by) == len(schema):
        raise SchemaError("partitionBy: at least one column must not be a partition column")


_PARTITIONABLE = (pa.types.is_string, pa.types.is_integer, pa.types.is_date, pa.types.is_boolean)
