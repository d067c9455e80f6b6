"""A step in Python: `transform` gets a DataFrame and gives one. It is called for streams and for batches alike."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def transform(frame: DataFrame) -> DataFrame:
    return frame.withColumn("type", f.lower(f.trim("type")))
