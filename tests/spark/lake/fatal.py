"""A driver that stops in the middle of a commit: before the table knows of the batch, or after it and before Spark does.

Run as a program it starts a query for each (kind, moment), lets each reach its moment in batch 1, and waits to be killed.
As a module it is the sink that does so, and one whose task kills its own process.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from braidlog.spark import session, upsert
from braidlog.spark.lake.sink import LakeSink
from braidlog.spark.writers import StreamWriter

WAIT_SECONDS_MAX = 900
FATAL_BATCH = 1
UPSERT = "upsert."
"""Before a kind: the rows are upserted, not appended."""


class FatalWriter(StreamWriter):
    """Says where it is by making a file, with its process id in it."""

    def __init__(self, inner: StreamWriter, moment: str, marker: str) -> None:
        super().__init__(inner.sink)
        self.moment = moment
        self.marker = Path(marker)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        parcel = super().write(iterator)
        if self.moment == "task" and not self.marker.exists():
            self.marker.write_text(str(os.getpid()), encoding="ascii")
            os.kill(os.getpid(), signal.SIGKILL)
        return parcel

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if batchId == FATAL_BATCH and self.moment == "before":
            self._wait_for_the_end()
        super().commit(messages, batchId)
        if batchId == FATAL_BATCH and self.moment == "after":
            self._wait_for_the_end()
        if self.moment == "refused" and not self.marker.exists():
            self.marker.touch()
            raise OSError("the connection to the driver is lost")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().abort(messages, batchId)
        if self.moment == "refused":
            self.marker.write_text("aborted", encoding="ascii")

    def _wait_for_the_end(self) -> None:
        wait_for_the_end(self.marker)


def wait_for_the_end(marker: Path) -> None:
    part = marker.with_suffix(".part")
    part.write_text(str(os.getpid()), encoding="ascii")
    part.rename(marker)
    threading.Event().wait(WAIT_SECONDS_MAX)
    os._exit(1)


class FatalSink(LakeSink):
    """The sink, with the options `moment` and `marker`."""

    @classmethod
    def name(cls) -> str:
        return "braidlog-lake-fatal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FatalWriter:  # noqa: N802
        options = dict(self.options)
        moment, marker = options.pop("moment"), options.pop("marker")
        return FatalWriter(LakeSink(options).streamWriter(schema, overwrite), moment, marker)


def start(spark: SparkSession, folder: Path, case: str, **options: str) -> Any:
    """The query of a case (`delta-after`): one input file for each batch, from the checkpoint it has."""
    kind, _, _ = case.partition("-")
    rows = spark.readStream.schema("id bigint, name string").option("maxFilesPerTrigger", 1).json(str(folder / "input"))
    if kind.startswith(UPSERT):
        write = upsert_of(kind.removeprefix(UPSERT), folder / case / "table", options.get("servers", ""))
        fatal = fatal_upsert(write, options["moment"], Path(options["marker"])) if "moment" in options else write
        query = rows.writeStream.foreachBatch(fatal).option("checkpointLocation", str(folder / case / "checkpoint"))
        return query.trigger(availableNow=True).start()
    return (
        rows.repartition(2)
        .writeStream.format("braidlog-lake-fatal" if options else "braidlog-lake")
        .option("table", kind)
        .options(**options)
        .option("checkpointLocation", str(folder / case / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / case / "table"))
    )


def upsert_of(kind: str, table: Path, servers: str) -> upsert.Write:
    """The name is the key: every batch has the same ones, and the greater id counts."""
    if kind == "topic":
        return upsert.topic("upserted", key="name", order="id", servers=servers, createTopic="2")
    write = upsert.delta if kind == "delta" else upsert.iceberg
    return write(str(table), key="name", order="id")


def fatal_upsert(write: upsert.Write, moment: str, marker: Path) -> upsert.Write:
    def written(batch: DataFrame, number: int) -> None:
        if number == FATAL_BATCH and moment == "before":
            wait_for_the_end(marker)
        write(batch, number)
        if number == FATAL_BATCH:
            wait_for_the_end(marker)

    return written


def write_input(folder: Path, files: int, rows: int) -> None:
    (folder / "input").mkdir()
    for number in range(files):
        lines = [json.dumps({"id": number * rows + row, "name": f"n{row}"}) for row in range(rows)]
        path = folder / "input" / f"{number}.json"
        path.write_text("\n".join(lines), encoding="utf-8")
        os.utime(path, (1_700_000_000 + number,) * 2)  # the order in which Spark takes them


def moments(folder: Path, case: str) -> dict[str, str]:
    return {"moment": case.partition("-")[2], "marker": str(folder / f"{case}.marker")}


def main() -> None:
    folder, servers = Path(sys.argv[1]), sys.argv[2]
    spark = session("fatal", "local[2]", log_level="OFF", **{"spark.driver.memory": "1g"})
    spark.dataSource.register(FatalSink)
    queries = [
        start(spark, folder, case, **moments(folder, case), **({"servers": servers} if UPSERT in case else {}))
        for case in sys.argv[3:]
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main()
