"""Spark: topics, keys and tables as sources and sinks, and the pipeline made of them.

Knows: Spark's Python data source API, and braidlog as a client does. Refuses to know: the inside of a server.
Importing it costs nothing: pyspark and pyarrow are asked for when something is done with them.
"""

from braidlog.spark.options import Option, OptionError, OptionTable
from braidlog.spark.sessions import JavaMissingError, session

__all__ = ["JavaMissingError", "Option", "OptionError", "OptionTable", "session"]
