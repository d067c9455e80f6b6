"""`infer_schema(topic, n)`: infers the fields of a topic's JSON values, as DDL to review, edit and keep.

Does not handle: reading topics.
"""

import re
from typing import TYPE_CHECKING

from braidlog.spark.options import OptionError
from braidlog.spark.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_OBJECT = re.compile(r"\bOBJECT<")
_UNTYPED = re.compile(r"\b(?:VOID|VARIANT)\b(?=[,>])")
"""Used for a field that is always null, or has several types: text loses nothing."""
_DECIMAL = re.compile(r"\bDECIMAL\(\d+,\s*\d+\)")


def infer_schema(source: "Topic | DataFrame", n: int = 1000) -> str:
    """Infer the fields of the first `n` values, for `valueSchema` or a pipeline's `schema`. A frame needs a column
    `value`."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra
    from pyspark.sql.types import DataType, StructType  # noqa: PLC0415

    frame = source.columns("value").frame() if isinstance(source, Topic) else source
    parsed = f.try_parse_json(f.col("value").cast("string"))
    (row,) = frame.limit(n).agg(f.schema_of_variant_agg(parsed)).collect()
    said = row[0] or "nothing"
    if not said.startswith("OBJECT<"):
        raise OptionError("infer_schema", str(n), f"the values are not JSON objects; they are {said[:100]}")
    kind = DataType.fromDDL(_DECIMAL.sub("DOUBLE", _UNTYPED.sub("STRING", _OBJECT.sub("STRUCT<", said))))
    assert isinstance(kind, StructType)
    return ", ".join(f"{_quoted(field.name)} {_ddl(field.dataType)}" for field in kind.fields)


def _ddl(kind: "DataType") -> str:
    """Write types in capitals and names unchanged: fields match by exact name."""
    from pyspark.sql.types import ArrayType, StructType  # noqa: PLC0415 - an extra

    match kind:
        case StructType():
            return f"STRUCT<{', '.join(f'{_quoted(each.name)}: {_ddl(each.dataType)}' for each in kind.fields)}>"
        case ArrayType():
            return f"ARRAY<{_ddl(kind.elementType)}>"
        case _:
            return kind.simpleString().upper()


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
