"""What a row may hold: the columns of Kafka's own sink, and a time.

Knows: names and types. Refuses to know: values.
Invariant: what cannot be written is refused before anything is, by the column's name and with the form that it takes.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

FORMS: Final[dict[str, tuple[tuple[DataType, ...], str]]] = {
    "value": ((BinaryType(), StringType()), "binary or string"),
    "key": ((BinaryType(), StringType()), "binary or string"),
    "headers": ((_HEADERS,), "array<struct<key: string, value: binary>>"),
    "topic": ((StringType(),), "string"),
    "partition": ((IntegerType(),), "int"),
    "timestamp": ((TimestampType(),), "timestamp"),
}
READ_ONLY: Final = ("offset", "timestampType")
"""What the source gives beside these: the log says it anew, so that what was read can be written as it is."""


class ColumnError(ValueError):
    """A DataFrame that cannot be written."""


def check_columns(schema: StructType, *, topic: str | None) -> None:
    """Raise a `ColumnError` unless the columns are those of a record."""
    names = [field.name for field in schema.fields]
    if "value" not in names:
        raise ColumnError(
            f"a record has a value: the DataFrame needs a column `value` ({FORMS['value'][1]}), it has {', '.join(names)}"
        )
    if topic is None and "topic" not in names:
        raise ColumnError("no topic is said: set the option topic, or give each row a column `topic` (string)")
    for field in schema.fields:
        _check_field(field, names)


def _check_field(field: StructField, names: list[str]) -> None:
    if names.count(field.name) > 1:
        raise ColumnError(f"column `{field.name}` is there {names.count(field.name)} times")
    if field.name in READ_ONLY:
        return
    if field.name not in FORMS:
        raise ColumnError(
            f"column `{field.name}` has no place in a record, which takes {', '.join(FORMS)}: "
            "drop it, or pack it into `value` (to_json, to_avro, …)"
        )
    types, form = FORMS[field.name]
    if not any(_same(field.dataType, each) for each in types):
        raise ColumnError(f"column `{field.name}` is {form}, not {field.dataType.simpleString()}: cast it")


def _same(found: DataType, wanted: DataType) -> bool:
    """Without what may be null: a record's parts may."""
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        return _same(found.elementType, wanted.elementType)
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        pairs = list(zip(found.fields, wanted.fields, strict=False))
        return len(found) == len(wanted) and all(a.name == b.name and _same(a.dataType, b.dataType) for a, b in pairs)
    return isinstance(found, type(wanted))
