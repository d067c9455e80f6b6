"""A transform in Python: `transform` takes a DataFrame and returns one. It is called for streams and for batches."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def transform(frame: DataFrame) -> DataFrame:
    return frame.withColumn("type", f.lower(f.trim("type")))
