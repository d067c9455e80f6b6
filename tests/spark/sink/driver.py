"""A Spark driver in a process of its own, to be killed: files of lines become records, a file each micro-batch."""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from braidlog.spark import session

TOPIC = "lines"
PARTITIONS = 2
TASKS = 2


def lines(spark: SparkSession, folder: str) -> DataFrame:
    return spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(folder).repartition(TASKS)


def started(spark: SparkSession, servers: str, folder: str, checkpoint: str) -> StreamingQuery:
    return (
        lines(spark, folder)
        .writeStream.format("braidlog")
        .option("servers", servers)
        .option("topic", TOPIC)
        .option("createTopic", PARTITIONS)
        .option("batchBytes", 1024)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def main(servers: str, folder: str, checkpoint: str, scratch: str) -> None:
    spark = session(
        "to be killed",
        f"local[{TASKS},6]",
        log_level="ERROR",
        **{
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.system.home={scratch}",
            "spark.local.dir": scratch,
        },
    )
    started(spark, servers, folder, checkpoint).awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
