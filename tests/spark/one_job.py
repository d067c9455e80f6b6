"""A job as anybody would write it, which does not know where it runs: its session is the one that it is given.

    python -m tests.spark.one_job <servers> <store> <folder>

From a topic, looked up in the store, to another topic and to a table by key; then everything is read again, in SQL too.
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from braidlog.spark import lookup, tables, topic, upsert

SCHEMA = "flight BIGINT, origin STRING, delay BIGINT"


def main(servers: str, store: str, folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    flights = topic(spark, "flights", servers, valueFormat="json", valueSchema=SCHEMA)
    named = lookup(
        flights.stream().select("value.*"), on="origin", prefix="airport:", schema="city STRING", servers=store
    )
    late = named.where("delay >= 50").select(
        f.col("flight").cast("string").alias("key"), f.to_json(f.struct("*")).alias("value")
    )
    copied = late.writeStream.format("braidlog").options(servers=servers, topic="late", createTopic="2")
    copied.option("checkpointLocation", f"{folder}/late").trigger(availableNow=True).start().awaitTermination()
    last = named.groupBy("flight").agg(f.max("delay").alias("delay"), f.first("city").alias("city"))
    kept = last.writeStream.outputMode("update").foreachBatch(upsert.delta(f"{folder}/table", key="flight", sink="job"))
    kept.option("checkpointLocation", f"{folder}/last").trigger(availableNow=True).start().awaitTermination()
    table = spark.read.format("braidlog-lake").options(table="delta", path=f"{folder}/table").load()
    tables(spark, servers, "late", valueFormat="string")
    found = {
        "count": flights.count(),
        "part": flights.where(partition=1, offset=(10, 20)).count(),
        "late": spark.sql("SELECT * FROM late WHERE value LIKE '%Rome%'").count(),
        "table": sorted([row["flight"], row["delay"], row["city"]] for row in table.collect()),
    }
    print("found", json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
