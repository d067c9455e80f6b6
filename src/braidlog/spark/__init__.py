"""Spark: topics, keys and lake tables as sources and sinks, and the pipeline that combines them.

Uses Spark's Python data source API and the braidlog client. Importing it is cheap: pyspark and pyarrow are imported
when used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from braidlog.spark.options import FormatOptions, Option, OptionError
from braidlog.spark.sessions import JavaMissingError, session

if TYPE_CHECKING:
    from braidlog.spark import upsert
    from braidlog.spark.inference import infer_schema
    from braidlog.spark.lookups import lookup
    from braidlog.spark.pipeline.progress_reporting import report
    from braidlog.spark.topics import tables, topic

_HOMES = {
    "infer_schema": "inference",
    "lookup": "lookups",
    "report": "pipeline.progress_reporting",
    "tables": "topics",
    "topic": "topics",
}

__all__ = [
    "FormatOptions",
    "JavaMissingError",
    "Option",
    "OptionError",
    "infer_schema",
    "lookup",
    "report",
    "session",
    "tables",
    "topic",
    "upsert",
]


def __getattr__(name: str) -> object:
    if name == "upsert":
        return import_module("braidlog.spark.upsert")
    if name not in _HOMES:
        raise AttributeError(f"module 'braidlog.spark' has no attribute {name!r}")
    return getattr(import_module(f"braidlog.spark.{_HOMES[name]}"), name)
