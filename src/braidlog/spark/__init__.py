"""Spark: topics, keys and tables as sources and sinks, and the pipeline made of them.

Knows: Spark's Python data source API, and braidlog as a client does. Refuses to know: the inside of a server.
Importing it costs nothing: pyspark and pyarrow are asked for when something is done with them.
"""

from typing import TYPE_CHECKING

from braidlog.spark.options import FormatOptions, Option, OptionError
from braidlog.spark.sessions import JavaMissingError, session

if TYPE_CHECKING:
    from braidlog.spark.pipeline.reporting import report

__all__ = ["FormatOptions", "JavaMissingError", "Option", "OptionError", "report", "session"]


def __getattr__(name: str) -> object:
    if name == "report":
        from braidlog.spark.pipeline.reporting import report  # noqa: PLC0415 - it takes pyspark

        return report
    raise AttributeError(f"module 'braidlog.spark' has no attribute {name!r}")
