"""Records as a source returns them, and as the sink accepts them: the columns of all layers' topics.

The columns are those of Spark's Kafka connector. Does not handle: values.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

COLUMNS: Final = "topic string, partition int, offset long, timestamp timestamp, key binary, value binary"
HEADERS: Final = "array<struct<key:string,value:binary>>"
SCHEMA: Final = f"{COLUMNS}, headers {HEADERS}"
PLACE: Final = ("topic", "partition", "offset")


def as_it_came(records: DataFrame) -> DataFrame:
    """Return every record unchanged, for bronze."""
    return records.select("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def header(name: str) -> Column:
    """Return the last header with this name, as text; null if there is none."""
    of_name = f.filter(f.col("headers"), lambda each: each["key"] == f.lit(name))
    return f.try_element_at(of_name, f.lit(-1))["value"].cast("string")


def text(value: Column) -> Column:
    """Return a header's value as text."""
    return value.cast("string").cast("binary")


def made_header(name: str, value: Column) -> Column:
    return f.struct(f.lit(name).alias("key"), text(value).alias("value"))


def as_json(row: Column) -> Column:
    """Encode a row as a value: times in microseconds, explicit nulls, so that decoding it returns the same row."""
    options = {"timestampFormat": TIME_FORMAT, "ignoreNullFields": "false"}
    return f.to_json(row, options).cast("binary")


TIME_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
