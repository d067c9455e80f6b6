"""Spark's two kinds of writer, over whatever rows are written to.

Knows: Spark's protocol: tasks write on executors, the driver commits or aborts, and may do either twice; between them go messages
and nothing else. Refuses to know: where rows go. A sink says what each step means: topics, keys and tables have one each.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from braidlog.spark.short_errors import short_errors
from braidlog.spark.worker_memory import freeze_imports

Messages = Sequence[WriterCommitMessage | None]
"""What the tasks of a batch return; None is one that failed."""


class Sink(Protocol):
    """It travels to the executors. `batch` is the number of a stream's batch, None for a batch write."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: write the rows of a task."""
        ...

    def commit(self, messages: Messages, batch: int | None) -> None:
        """On the driver: make what the tasks wrote count, once however often it is asked for."""
        ...

    def abort(self, messages: Messages, batch: int | None) -> None:
        """On the driver: let go of what does not count; it may come after a commit that succeeded."""
        ...


class BatchWriter(DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    @short_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.sink.write(iterator)

    @short_errors
    def commit(self, messages: Messages) -> None:
        self.sink.commit(messages, None)

    def abort(self, messages: Messages) -> None:
        self.sink.abort(messages, None)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`. Spark makes a new one for each step of each batch."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    @short_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        written = self.sink.write(iterator)
        freeze_imports()
        return written

    @short_errors
    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        self.sink.commit(messages, batchId)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        self.sink.abort(messages, batchId)
