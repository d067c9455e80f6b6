"""What a row may hold: the columns of Kafka's own sink, and a time.

Invariant: what cannot be written is refused before anything is, by the column's name and with the type that it takes.
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
    # What the source gives beside these: the log says it anew, so that what was read can be written as it is.
    "offset": (),
    "timestampType": (),
}
_UNKNOWN: Final = (
    "column `{name}` has no place in a record, which takes {known}: "
    "drop it, or pack it into `value` (to_json, to_avro, …)"
)


def check_record(schema: StructType, *, topic: str | None) -> None:
    """Raise a `ColumnError` unless the columns are those of a record."""
    if "value" not in schema.names:
        raise ColumnError(
            "a record has a value: the DataFrame needs a column `value` (binary or string), "
            f"it has {', '.join(schema.names)}"
        )
    if topic is None and "topic" not in schema.names:
        raise ColumnError("no topic is said: set the option topic, or give each row a column `topic` (string)")
    check_columns(schema, RECORD, _UNKNOWN)
