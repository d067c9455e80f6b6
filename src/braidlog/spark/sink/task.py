"""Writes the rows of one task: to a stage, or directly to the log.

Does not handle: committing stages (`writers.py`).
A failed task aborts its stage if possible. A batch that is already committed is not staged again.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from braidlog.client.drivers.kafka.staging import BatchWriter, Section, Sinks, Stage, coordinator_name
from braidlog.client.engine.admin import Admin
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import ClientError, Refusal, RefusedError
from braidlog.model.clock import SystemClock
from braidlog.model.stage_ids import stage_name
from braidlog.spark.connections import Connection, borrowed
from braidlog.spark.sink.filling import Filling, RowError
from braidlog.spark.sink.options import Settings

HELD_BYTES_MAX = 64 * 1024 * 1024
"""Limit of all open batches of all partitions and topics: a task that writes to thousands sends smaller batches."""
SHORT = Policy(retry_timeout=5.0, request_timeout=10.0)
"""Timeout for aborting a stage: the stage times out anyway, and a failed task should report soon."""
_BATCH_ID, _QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"


class Staged(WriterCommitMessage):
    """A task's message to the driver: all that is needed to commit, because another writer object commits."""

    def __init__(self, sink: str, writer: str, stage: Stage | None, rows: int) -> None:
        self.sink = sink
        self.writer = writer
        self.stage = stage
        self.rows = rows


class Attempt(msgspec.Struct, frozen=True):
    """One attempt at one partition of one batch."""

    sink: str
    writer: str
    batch_id: int
    partition: int
    number: int

    @property
    def stage(self) -> str:
        return stage_name(self.sink, self.batch_id, f"{self.partition}-{self.number}")


def this_attempt(settings: Settings) -> Attempt:
    context = TaskContext.get()
    assert context is not None, "rows are written in tasks"
    streaming = settings.batch_id is None
    query = context.getLocalProperty(_QUERY_ID) or "" if streaming else ""
    return Attempt(
        sink=settings.sink_id or query,
        writer=query,
        batch_id=int(context.getLocalProperty(_BATCH_ID) or 0) if settings.batch_id is None else settings.batch_id,
        partition=context.partitionId(),
        number=context.taskAttemptId(),
    )


def write_rows(settings: Settings, batches: Iterator[pa.RecordBatch]) -> Staged:
    attempt = this_attempt(settings)
    with borrowed(settings.servers) as connection:
        sinks = Sinks(connection.driver, connection.policy)
        if settings.exactly_once and connection.run(sinks.state(attempt.sink, attempt.writer)) >= attempt.batch_id:
            for _ in batches:  # a replay: consume the rows, because Spark expects it
                pass
            return Staged(attempt.sink, attempt.writer, None, 0)
        task = Task(settings, attempt, connection)
        try:
            for batch in batches:
                task.append(batch)
            return task.finish()
        except BaseException:
            task.give_up()
            raise


def partitions_of(connection: Connection, topic: str, create: int | None) -> int:
    """Return the topic's partition count; with `create`, create a missing topic with that count."""
    try:
        return connection.ask(lambda: connection.driver.partition_count(topic))
    except RefusedError as error:
        if error.reason is not Refusal.TOPIC_NOT_FOUND:
            raise
        if create is None:
            said = f"no topic {topic!r}: create it with `braid topic create {topic}`, or set the option createTopic"
            raise RefusedError(error.reason, error.dialect, error.code, said) from error
    connection.run(Admin(connection.driver, connection.policy).ensure_topic(topic, create))
    return partitions_of(connection, topic, None)


class Task:
    """One attempt. It sends nothing to the broker before there is a row."""

    def __init__(self, settings: Settings, attempt: Attempt, connection: Connection) -> None:
        self._settings = settings
        self._attempt = attempt
        self._connection = connection
        self._clock = SystemClock()
        self._writer: BatchWriter | None = None
        self._topics: dict[str, Filling] = {}
        self._rows = 0

    def append(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        now_ms = self._clock.now_ms()
        for topic, rows in self._by_topic(batch):
            self._filling(topic).append(rows, now_ms)
        self._rows += batch.num_rows
        if sum(filling.held_bytes for filling in self._topics.values()) > HELD_BYTES_MAX:
            self._emit_all()

    def finish(self) -> Staged:
        """Wait until all records are stored."""
        self._emit_all()
        stage = None
        if self._writer is not None:
            self._connection.run(self._writer.flush())
            stage = self._writer.stage
            self._connection.run(self._writer.close())
        return Staged(self._attempt.sink, self._attempt.writer, stage, self._rows)

    def _emit_all(self) -> None:
        for filling in self._topics.values():
            filling.finish()

    def give_up(self) -> None:
        """Abort the stage. If that fails too, the commit of its batch or its timeout ends it."""
        if self._writer is None:
            return
        self._connection.run(self._writer.close())
        stage = self._writer.stage
        if stage is not None:
            with contextlib.suppress(ClientError):
                sinks = Sinks(self._connection.driver, SHORT)
                self._connection.run(sinks.abort(self._attempt.sink, self._attempt.batch_id, [stage]))

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._settings.topic is not None:
            yield self._settings.topic, batch
            return
        column = batch.column("topic")
        for topic in pc.unique(column).to_pylist():
            if topic is None:
                raise RowError("a row has no topic: its column `topic` is null, and the option topic is not set")
            yield topic, batch.filter(pc.equal(column, topic))

    def _filling(self, topic: str) -> Filling:
        filling = self._topics.get(topic)
        if filling is None:
            writer = self._begun()

            def emit(number: int, section: Section) -> None:
                self._connection.run(writer.send(writer.seal((topic, number), section)))

            def announce(numbers: Sequence[int]) -> None:
                self._connection.run(writer.add([(topic, number) for number in numbers]))

            filling = self._topics[topic] = Filling(
                topic,
                partitions_of(self._connection, topic, self._settings.create_topic),
                self._settings.batch_bytes,
                # Otherwise small batches would all start at the same partition.
                first=self._attempt.partition + self._attempt.batch_id,
                emit=emit,
                announce=announce,
            )
        return filling

    def _begun(self) -> BatchWriter:
        if self._writer is None:
            settings, attempt = self._settings, self._attempt
            staging: dict[str, Any] = (
                {
                    "stage": attempt.stage,
                    "coordinator": coordinator_name(attempt.sink),
                    "timeout_ms": settings.stage_timeout,
                }
                if settings.exactly_once
                else {}
            )
            driver, policy = self._connection.driver, self._connection.policy
            self._writer = BatchWriter(driver, policy, compression=settings.codec, **staging)
            self._connection.run(self._writer.begin())
        return self._writer
