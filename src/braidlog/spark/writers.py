"""Adapts Spark's two kinds of writer to a `Sink`.

Spark's protocol: tasks write on executors, the driver commits or aborts, and each may happen twice. Only messages
pass between them. Each sink (topics, keys, tables) implements the steps.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from braidlog.spark.short_errors import short_errors
from braidlog.spark.worker_memory import freeze_imports

Messages = Sequence[WriterCommitMessage | None]
"""The tasks' messages of a batch; None for a failed task."""


class Sink(Protocol):
    """A destination of rows; it is sent to the executors. `batch` is the number of a stream's batch, None for a batch
    write."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: write the rows of a task."""
        ...

    def commit(self, messages: Messages, batch: int | None) -> None:
        """On the driver: commit what the tasks wrote; must be idempotent."""
        ...

    def abort(self, messages: Messages, batch: int | None) -> None:
        """On the driver: discard uncommitted rows; may follow a successful commit."""
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
    """`df.writeStream`. Spark creates a new writer for each step of each batch."""

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
