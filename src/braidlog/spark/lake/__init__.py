"""Tables in a lake: Delta or Iceberg, written by Spark's tasks without a jar.

Knows: how files become part of a table once and only once. Refuses to know: where the rows came from.
`sink.py` is what Spark calls, `upkeep.py` what a person or a timer calls. Importing this costs nothing: pyarrow and the tables'
libraries are asked for when something is done with them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidlog.spark.lake.errors import LakeError
    from braidlog.spark.lake.upkeep import Report, compact, files, vacuum

KINDS = ("delta", "iceberg")
NO_PARQUET = (
    "there is no table of plain Parquet files: use delta or iceberg, or Spark's own `write.parquet` for plain files"
)

STORES = {"delta": ("s3://",), "iceberg": ("s3://", "gs://", "abfss://")}
"""Of each kind, the object stores it may be in."""

_HOMES = {"LakeError": "errors", "Report": "upkeep", "compact": "upkeep", "files": "upkeep", "vacuum": "upkeep"}

__all__ = ["KINDS", "NO_PARQUET", "STORES", "LakeError", "Report", "compact", "files", "vacuum"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'braidlog.spark.lake' has no attribute {name!r}")
    return getattr(import_module(f"braidlog.spark.lake.{_HOMES[name]}"), name)
