"""`python read_table.py JAR URL TABLE`: what Spark reads with Iceberg's runtime, in an environment of its own; rows as JSON."""

import base64
import json
import sys
from datetime import UTC

from pyspark.sql import SparkSession


def main() -> None:
    jar, url, name = sys.argv[1:]
    own = "spark.sql.catalog.judge"
    settings: dict[str, bool | float | int | str | None] = {
        "spark.jars": jar,
        own: "org.apache.iceberg.spark.SparkCatalog",
        f"{own}.type": "rest",
        f"{own}.uri": url,
        f"{own}.cache-enabled": "false",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    table = spark.table(f"judge.topics.`{name}`")
    for row in table.orderBy("partition", "offset").collect():
        print(json.dumps(row.asDict(recursive=True), default=_plain))
    few = table.where("partition = 1 and offset >= 3").select("offset").orderBy("offset")
    print(json.dumps([row.offset for row in few.collect()]))
    spark.stop()


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return int(value.astimezone(UTC).timestamp() * 1000)  # type: ignore[attr-defined] # nothing but times are left


if __name__ == "__main__":
    main()
