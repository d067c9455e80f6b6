"""The columns that a format reads or writes: names, and the allowed types of each in Spark's notation
(`simpleString`).

Nullability is not checked: all columns may be null.
"""

from collections.abc import Mapping

from pyspark.sql.types import StructType

Columns = Mapping[str, tuple[str, ...]]
"""Name → types; an empty tuple allows all types."""


class ColumnError(ValueError):
    """A DataFrame has an unknown column, or lacks one, or one has the wrong type."""


def simple(ddl: str) -> str:
    """Return a DDL type in Spark's one-word notation."""
    return ddl.lower().replace(" ", "")


def check_columns(schema: StructType, known: Columns, unknown: str) -> None:
    """Raise `ColumnError` unless these columns are known. `unknown` is the message for an unknown one: {name};
    {known}."""
    for field in schema.fields:
        count, kind = schema.names.count(field.name), field.dataType.simpleString()
        if count > 1:
            raise ColumnError(f"column `{field.name}` occurs {count} times")
        if field.name not in known:
            named = ", ".join(name for name, types in known.items() if types)
            raise ColumnError(unknown.format(name=field.name, known=named))
        types = known[field.name]
        if types and kind not in types:
            raise ColumnError(f"column `{field.name}` must be {' or '.join(types)}, not {kind}: cast it")
