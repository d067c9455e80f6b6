"""Topics as a sink: the driver commits what tasks stage, all of it or nothing.

Does not handle: writing rows (`task.py`). Staged rows are invisible before `commit`, which makes all of them visible.
A repeated `commit` of a committed batch, and `abort` after it, change nothing. The tasks' messages carry what the
commit needs.
"""

import logging
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from braidlog.client.drivers.kafka.staging import Sinks
from braidlog.client.errors import ClientError
from braidlog.spark.connections import borrowed
from braidlog.spark.options import UPSERT, OptionError
from braidlog.spark.sink.columns import check_record
from braidlog.spark.sink.options import Settings
from braidlog.spark.sink.task import SHORT, Staged, write_rows
from braidlog.spark.writers import BatchWriter, Messages, StreamWriter

log = logging.getLogger("braidlog.spark")


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchWriter:  # noqa: FBT001 - as Spark calls it
    """`df.write.format("braidlog")`."""
    if overwrite:
        raise OptionError(
            "mode", "overwrite", 'a topic can only be appended to: use mode("append"); to empty a topic, delete it'
        )
    return BatchWriter(_sink(schema, options, streaming=False))


def stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamWriter:  # noqa: FBT001 - as Spark calls it
    """`df.writeStream.format("braidlog")`."""
    if overwrite:
        raise OptionError("outputMode", "complete", UPSERT.format(what="topic"))
    return StreamWriter(_sink(schema, options, streaming=True))


def _sink(schema: StructType, options: Mapping[str, str], *, streaming: bool) -> "TopicSink":
    settings = Settings(options, streaming=streaming)
    check_record(schema, topic=settings.topic)
    return TopicSink(settings)


class TopicSink(msgspec.Struct, frozen=True):
    """The sink of a stream; a batch write is one batch, of a new sink unless it is named."""

    settings: Settings

    def write(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        return write_rows(self.settings, batches)

    def commit(self, messages: Messages, batch: int | None) -> None:
        """Commit a batch. Without messages there were no tasks, and nothing to commit."""
        staged = _staged(messages)
        if not self.settings.exactly_once or not staged:
            return
        stages = [each.stage for each in staged if each.stage is not None]
        sink, number = staged[0].sink, self._number(batch)
        with borrowed(self.settings.servers) as connection:
            sinks = Sinks(connection.driver, connection.policy)
            decision = connection.run(sinks.commit(sink, number, stages, staged[0].writer))
        if decision.already:
            log.info("batch %d of sink %s had been committed before; nothing is written again", number, sink)

    def abort(self, messages: Messages, batch: int | None) -> None:
        """Abort open stages. A committed batch stays; a stage that cannot be aborted now times out."""
        staged = _staged(messages)
        sink = staged[0].sink if staged else self.settings.sink_id
        if not self.settings.exactly_once or sink is None:
            return
        number = self._number(batch)
        try:
            with borrowed(self.settings.servers) as connection:
                connection.run(Sinks(connection.driver, SHORT).abort(sink, number, None))
        except ClientError as error:
            log.warning("stages of batch %d of sink %s stay open until they time out: %s", number, sink, error)

    def _number(self, batch: int | None) -> int:
        number = self.settings.batch_id if batch is None else batch
        assert number is not None, "a batch write has its number from the settings"
        return number


def _staged(messages: Messages) -> list[Staged]:
    """Return the messages; failed tasks have none."""
    return [message for message in messages if isinstance(message, Staged)]
