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
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from braidlog.spark import session
from braidlog.spark.lake.sink import LakeSink
from braidlog.spark.writers import StreamWriter

WAIT_SECONDS_MAX = 900
FATAL_BATCH = 1


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
        part = self.marker.with_suffix(".part")
        part.write_text(str(os.getpid()), encoding="ascii")
        part.rename(self.marker)
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
    return (
        rows.repartition(2)
        .writeStream.format("braidlog-lake-fatal" if options else "braidlog-lake")
        .option("table", kind)
        .options(**options)
        .option("checkpointLocation", str(folder / case / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / case / "table"))
    )


def write_input(folder: Path, files: int, rows: int) -> None:
    (folder / "input").mkdir()
    for number in range(files):
        lines = [json.dumps({"id": number * rows + row, "name": f"n{row}"}) for row in range(rows)]
        path = folder / "input" / f"{number}.json"
        path.write_text("\n".join(lines), encoding="utf-8")
        os.utime(path, (1_700_000_000 + number,) * 2)  # the order in which Spark takes them


def main() -> None:
    folder = Path(sys.argv[1])
    spark = session("fatal", "local[2]", log_level="OFF", **{"spark.driver.memory": "1g"})
    spark.dataSource.register(FatalSink)
    queries = [
        start(spark, folder, case, moment=case.partition("-")[2], marker=str(folder / f"{case}.marker"))
        for case in sys.argv[2:]
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main()
