"""What Spark calls: a writer for batches, one for streams.

Knows: Spark's protocol: tasks write, the driver commits or aborts, and may do either twice. Refuses to know: how rows are
written. Invariants: nothing that a task staged counts before `commit`, and then all of it does; `commit` may come again for a
batch that counts, and `abort` after it: neither changes anything. What must be known at commit travels in the tasks' messages.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from braidlog.client.errors import ClientError
from braidlog.spark.options import OptionError
from braidlog.spark.sink.columns import check_columns
from braidlog.spark.sink.doors import door_to
from braidlog.spark.sink.options import Settings, settings_of
from braidlog.spark.sink.task import Staged, write_rows

log = logging.getLogger("braidlog.spark")

Messages = Sequence[WriterCommitMessage | None]


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> "BatchSink":  # noqa: FBT001 - as Spark calls it
    """`df.write.format("braidlog")`."""
    if overwrite:
        raise OptionError("mode", "overwrite", 'a log is appended to: use mode("append"); to empty a topic, delete it')
    return BatchSink(_checked(schema, options, streaming=False))


def stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> "StreamSink":  # noqa: FBT001 - as Spark calls it
    """`df.writeStream.format("braidlog")`."""
    if overwrite:
        raise OptionError("outputMode", "complete", "a log is appended to: use append or update")
    return StreamSink(_checked(schema, options, streaming=True))


def _checked(schema: StructType, options: Mapping[str, str], *, streaming: bool) -> Settings:
    settings = settings_of(options, streaming=streaming)
    check_columns(schema, topic=settings.topic)
    return settings


class BatchSink(DataSourceArrowWriter):
    """One write is one batch, of a sink of its own unless it is named."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return write_rows(self._settings, iterator)

    def commit(self, messages: Messages) -> None:
        assert self._settings.batch_id is not None
        commit_batch(self._settings, messages, self._settings.batch_id)

    def abort(self, messages: Messages) -> None:
        assert self._settings.batch_id is not None
        abort_batch(self._settings, messages, self._settings.batch_id)


class StreamSink(DataSourceStreamArrowWriter):
    """Spark makes a new one for each step of each batch."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return write_rows(self._settings, iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        commit_batch(self._settings, messages, batchId)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        abort_batch(self._settings, messages, batchId)


def commit_batch(settings: Settings, messages: Messages, batch_id: int) -> None:
    """Let a batch count. Without a message there was no task, and nothing to count."""
    told = _told(messages)
    if not settings.exactly_once or not told:
        return
    door = door_to(settings.servers)
    stages = [each.stage for each in told if each.stage is not None]
    decision = door.run(door.sinks.commit(told[0].sink, batch_id, stages, told[0].writer))
    if decision.already:
        log.info("batch %d of sink %s had been committed before; nothing is written again", batch_id, told[0].sink)


def abort_batch(settings: Settings, messages: Messages, batch_id: int) -> None:
    """Let go of what is open. A batch that counts stays; what cannot be told now ends with the stages' timeout."""
    told = _told(messages)
    sink = told[0].sink if told else settings.sink
    if not settings.exactly_once or sink is None:
        return
    door = door_to(settings.servers)
    try:
        door.run(door.sinks_soon.abort(sink, batch_id, None))
    except ClientError as error:
        log.warning("stages of batch %d of sink %s stay open until they time out: %s", batch_id, sink, error)


def _told(messages: Messages) -> list[Staged]:
    """Of tasks that failed there is no message."""
    return [each for each in messages if isinstance(each, Staged)]
