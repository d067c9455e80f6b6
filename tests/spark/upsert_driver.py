"""A Spark driver in a process of its own, to be killed: commits of a table are looked up and upserted into all four targets.

It stops when it has written to the target that it was told (`kv`), or its executors do when they have half of the rows for it
(`in kv`), until it is told to go on: so a kill falls where it is meant to.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from braidlog.spark import lookup, session, upsert

TOPIC, KEYS = "out", "out:"
PARTITIONS = 2
TARGETS = ("topic", "kv", "delta", "iceberg")
LOOK_SECONDS = 0.05


class Places(NamedTuple):
    """Where the rows come from and go to: Kafka's port, the store, and a folder with all the rest."""

    servers: str
    store: str
    folder: str

    def at(self, name: str) -> str:
        return str(Path(self.folder) / name)


def started(spark: SparkSession, places: Places, stop_after: str = "") -> StreamingQuery:
    rows = spark.readStream.format("braidlog-lake").options(table="delta", path=places.at("source")).load()
    named = lookup(rows, on="origin", prefix="airport:", schema="city STRING", servers=places.store)
    writes = {
        "topic": upsert.topic(TOPIC, key="id", servers=places.servers, createTopic=str(PARTITIONS), batchBytes="1024"),
        "kv": upsert.kv(key="id", prefix=KEYS, servers=places.store),
        "delta": upsert.delta(places.at("delta"), key="id"),
        "iceberg": upsert.iceberg(places.at("iceberg"), key="id"),
    }

    def write(batch: DataFrame, number: int) -> None:
        for target in TARGETS:
            halves = stop_after == f"in {target}"
            writes[target](batch.mapInArrow(_stop_between(places.folder), batch.schema) if halves else batch, number)
            if target == stop_after:
                _stop(Path(places.folder))

    stream = named.writeStream.foreachBatch(write).option("checkpointLocation", places.at("checkpoint"))
    return stream.trigger(availableNow=True).start()


def _stop_between(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def halves(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            _stop(Path(folder))
            yield batch.slice(half)

    return halves


def _stop(folder: Path) -> None:
    (folder / "stopped").touch()
    while not (folder / "go").exists():
        threading.Event().wait(LOOK_SECONDS)


def main(servers: str, store: str, folder: str, stop_after: str) -> None:
    spark = session(
        "to be killed",
        "local[2,6]",
        log_level="ERROR",
        **{
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.system.home={folder}",
            "spark.local.dir": folder,
        },
    )
    started(spark, Places(servers, store, folder), stop_after).awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
