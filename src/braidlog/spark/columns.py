"""Columns that a format gives or takes: their names, and the types that each may have, as Spark writes them (`simpleString`).

Whether a part may be null is not looked at: all of them may.
"""

from collections.abc import Mapping

from pyspark.sql.types import StructType

Columns = Mapping[str, tuple[str, ...]]
"""Name → types; without any, all are taken."""


class ColumnError(ValueError):
    """A DataFrame has a column that is not the format's, or one of another type, or lacks one."""


def simple(ddl: str) -> str:
    """A type of DDL as Spark writes it in one word."""
    return ddl.lower().replace(" ", "")


def check_columns(schema: StructType, known: Columns, unknown: str) -> None:
    """Raise a `ColumnError` unless the columns are among these. `unknown` says it of one that is not: {name}; {known}."""
    for field in schema.fields:
        count, found = schema.names.count(field.name), field.dataType.simpleString()
        if count > 1:
            raise ColumnError(f"column `{field.name}` is there {count} times")
        if field.name not in known:
            named = ", ".join(name for name, types in known.items() if types)
            raise ColumnError(unknown.format(name=field.name, known=named))
        types = known[field.name]
        if types and found not in types:
            raise ColumnError(f"column `{field.name}` is {' or '.join(types)}, not {found}: cast it")
