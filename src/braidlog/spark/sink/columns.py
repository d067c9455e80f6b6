"""The columns that a row may have: those of Kafka's own sink, and a timestamp.

A column that cannot be written is refused before anything is written; the error names it and the expected type.
"""

from typing import Final

from pyspark.sql.types import StructType

from braidlog.spark.columns import ColumnError, Columns, check_columns

RECORD: Final[Columns] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    # The source's other columns: the log sets them again, so that rows can be written as they were read.
    "offset": (),
    "timestampType": (),
}
_UNKNOWN: Final = (
    "column `{name}` is not part of a record, which has {known}: drop it, or pack it into `value` (to_json, to_avro, …)"
)


def check_record(schema: StructType, *, topic: str | None) -> None:
    """Raise `ColumnError` unless the columns are those of a record."""
    if "value" not in schema.names:
        raise ColumnError(
            "a record needs a value: the DataFrame needs a column `value` (binary or string), "
            f"it has {', '.join(schema.names)}"
        )
    if topic is None and "topic" not in schema.names:
        raise ColumnError("no topic is given: set the option topic, or add a column `topic` (string)")
    check_columns(schema, RECORD, _UNKNOWN)
