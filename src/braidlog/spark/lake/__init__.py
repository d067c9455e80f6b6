"""Lake tables in Delta or Iceberg format, written by Spark's tasks without a jar.

`sink.py` is called by Spark, `upkeep.py` by an operator or a timer. Importing it is cheap: pyarrow and the tables'
libraries are imported when used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidlog.spark.lake.errors import LakeError
    from braidlog.spark.lake.upkeep import Report, compact, files, vacuum

KINDS = ("delta", "iceberg")
NO_PARQUET = (
    "there is no sink for plain Parquet files: use delta or iceberg, or Spark's own `write.parquet` for plain files"
)

STORES = {"delta": ("s3://",), "iceberg": ("s3://", "gs://", "abfss://")}
"""The supported object stores, by kind of table."""

_HOMES = {"LakeError": "errors", "Report": "upkeep", "compact": "upkeep", "files": "upkeep", "vacuum": "upkeep"}

__all__ = ["KINDS", "NO_PARQUET", "STORES", "LakeError", "Report", "compact", "files", "vacuum"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'braidlog.spark.lake' has no attribute {name!r}")
    return getattr(import_module(f"braidlog.spark.lake.{_HOMES[name]}"), name)
