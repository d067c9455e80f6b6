"""Runs stages as streaming queries: wave by wave over all existing records, or continuously.

Does not handle: what a stage computes, signals, terminals. A stage whose query fails stops all others, unless only
its Python process did not start: then the stage is restarted. After a stop the next run resumes from the checkpoints.
Each sink commits a micro-batch once, so that an abandoned micro-batch can be repeated.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import braidlog
from braidlog.client.blocking import Client
from braidlog.spark.connections import FIRST_ANSWER_SECONDS_MAX
from braidlog.spark.options import servers as servers_of
from braidlog.spark.pipeline.checkpoints import Offsets
from braidlog.spark.pipeline.layers import tables
from braidlog.spark.pipeline.ledger import Generation
from braidlog.spark.pipeline.progress_reporting import Reporter
from braidlog.spark.pipeline.project import SOURCE, Project
from braidlog.spark.pipeline.stages import Layers, Stage, ToKeys, ToTable, ToTopic, stages_of

log = logging.getLogger("braidlog.spark")

WAIT_SECONDS: Final = 0.2
END_SECONDS_MAX: Final = 15.0
START_ATTEMPTS_MAX: Final = 5
"""Restarts in a run with `--once`; a continuous run has no limit."""
PAUSE_SECONDS: Final = 1.0
"""The pause before a restart; it doubles each time, up to the next constant."""
PAUSE_SECONDS_MAX: Final = 60.0
UPSERT_RECORDS_MAX: Final = 100_000
"""A micro-batch that is merged into a table is held in the driver's memory."""
_NOT_UP: Final = "Python worker failed to connect back"
"""Spark's message for a process that took longer than ten seconds to start; sinks ignore repeated micro-batches."""
_RAISED: Final = "[USER_RAISED_EXCEPTION] "
_BLANKS: Final = "\t "


class StageFailed(Exception):  # noqa: N818 - what it says
    """A stage's query has failed. `why` is the line of Spark's error that names the cause."""

    def __init__(self, stage: str, why: str, *, by_expectation: bool) -> None:
        super().__init__(f"stage {stage} failed: {why}")
        self.stage = stage
        self.why = why
        self.by_expectation = by_expectation


class StopRequest:
    """A request to stop that a signal handler may make while its own thread waits for it.

    `threading.Event` cannot do this: `set` in the handler would wait for the lock that the interrupted `wait` holds.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._gate.release()

    def wait(self, seconds: float) -> bool:
        """Wait; return whether the stop was requested in time."""
        if self._gate.acquire(timeout=seconds):
            self._gate.release()
        return self._is_set


class Stopped(Exception):  # noqa: N818 - what it says
    """The run was stopped by request."""


def connect(project: Project) -> Client:
    """Connect to the node that has the project's topics, with short timeouts because a person waits."""
    return braidlog.connect(servers_of.parse(project.source.servers), retry_timeout=FIRST_ANSWER_SECONDS_MAX)


def ends(client: Client, topics: Iterable[str]) -> Offsets:
    """Return the next offset of every partition, as the server reports it."""
    return {
        topic: {number: span.latest for number, span in enumerate(client.admin.describe_topic(topic).partitions)}
        for topic in topics
    }


def ensure_topics(project: Project, topics: Iterable[str]) -> None:
    """Create the topics that do not exist, with as many partitions as the source has."""
    with connect(project) as client:
        partitions = max(len(offsets) for offsets in ends(client, project.source.topics).values())
        for topic in topics:
            client.admin.ensure_topic(topic, partitions)


class Runner:
    """Runs the stages of one project in one session."""

    def __init__(
        self, spark: SparkSession, project: Project, generation: Generation, reporter: Reporter | None = None
    ) -> None:
        self._project = project
        self._generation = generation
        self._reporter = reporter
        self.spark = spark
        self.layers = Layers(spark, project)
        self.stages = stages_of(self.layers, generation.latest)

    def prepare(self) -> None:
        """Check that the source can be reached, and create the missing topics of layers."""
        ensure_topics(self._project, [stage.writes.topic for stage in self.stages if isinstance(stage.writes, ToTopic)])

    def once(self, stop: StopRequest, only: frozenset[str] = frozenset()) -> None:
        """Process all existing records through all layers: a layer is read when all its writers are done."""
        chosen = [stage for stage in self.stages if not only or stage.name in only]
        for wave in sorted({stage.wave for stage in chosen}):
            self._attend([stage for stage in chosen if stage.wave == wave], stop, once=True)

    def forever(self, stop: StopRequest, only: frozenset[str] = frozenset()) -> None:
        """Run until stopped."""
        self._attend([stage for stage in self.stages if not only or stage.name in only], stop)

    # -- reading and writing -------------------------------------------------------------------------------------

    def read_options(self, stage: Stage) -> dict[str, str]:
        """Return the options with which a stage reads its layer."""
        source = self._project.source
        options = {
            "servers": source.servers,
            "subscribe": ",".join(self._project.layer_topics(stage.reads)),
            "includeHeaders": "true",
            "groupId": f"{source.group or self._project.name}.{stage.name}",
        }
        most = source.max_records_per_batch
        if isinstance(stage.writes, ToTable) and stage.writes.table in self._project.pipeline.tables.upsert:
            most = min(most or UPSERT_RECORDS_MAX, UPSERT_RECORDS_MAX)
        if most:
            options["maxOffsetsPerTrigger"] = str(most)
        begin = source.starting if stage.reads == SOURCE else "earliest"
        return options | self._generation.starts.get(stage.name, {"startingOffsets": begin})

    def _start(self, stage: Stage, *, once: bool = False) -> StreamingQuery:
        raw = self.spark.readStream.format("braidlog").options(**self.read_options(stage)).load()
        checkpoint = self._project.checkpoint(stage.name, self._generation.of(stage.name))
        writer = self._sink(stage, stage.rows(raw))
        writer = writer.queryName(f"{self._project.name}.{stage.name}").option("checkpointLocation", str(checkpoint))
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=self._project.pipeline.run.trigger).start()

    def publish_batch(self, stage: Stage, raw: DataFrame) -> None:
        """Write the topic of a stage for a batch of records, outside its stream: once in each generation."""
        assert isinstance(stage.writes, ToTopic)
        options = {
            "servers": self._project.source.servers,
            "topic": stage.writes.topic,
            "sinkId": f"{self._project.name}.{stage.name}.{self._generation.token}",
            "batchId": "0",
        }
        stage.rows(raw).write.format("braidlog").options(**options).mode("append").save()

    def _sink(self, stage: Stage, rows: DataFrame) -> DataStreamWriter:
        writer = rows.writeStream.outputMode("append")
        match stage.writes:
            case ToTable(table) if table in self._project.pipeline.tables.upsert:
                return writer.foreachBatch(tables.upserting(self._project, table))
            case ToTable(table):
                return writer.format(tables.FORMAT).options(**tables.options(self._project, table))
            case ToTopic(topic):
                return writer.format("braidlog").options(servers=self._project.source.servers, topic=topic)
            case ToKeys(servers, last):

                def put(batch: DataFrame, _number: int) -> None:
                    # Setting a key to the same value again changes nothing: repeating a batch is safe.
                    last(batch).write.format("braidlog-kv").options(servers=servers).mode("append").save()

                return writer.foreachBatch(put)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _attend(self, stages: list[Stage], stop: StopRequest, *, once: bool = False) -> None:
        """Start queries and monitor them until they end or are stopped; then stop all."""
        started: dict[str, StreamingQuery] = {}
        attempts: Counter[str] = Counter()
        due = {stage.name: 0.0 for stage in stages}
        failed = ""
        try:
            while due or any(query.isActive for query in started.values()):
                # One at a time: Spark gives the Python process of each source only ten seconds to start.
                name = min(due, key=due.__getitem__, default="")
                late = []
                if name and due[name] <= time.monotonic() and all(_is_up(query) for query in started.values()):
                    del due[name]
                    late = self._start_one(next(stage for stage in stages if stage.name == name), started, once=once)
                if stop.wait(WAIT_SECONDS):
                    raise Stopped
                for name in [*late, *self._see(started)]:
                    started.pop(name, None)
                    attempts[name] += 1
                    if once and attempts[name] == START_ATTEMPTS_MAX:
                        failed = failed or name
                        continue
                    pause = min(PAUSE_SECONDS * 2.0 ** min(attempts[name] - 1, 60), PAUSE_SECONDS_MAX)
                    due[name] = time.monotonic() + pause
                    log.warning(
                        "restarting stage %s: its Python process did not start within 10 s, pause=%g s", name, pause
                    )
            self._see(started)
        finally:
            self._end(started)
        if failed:
            raise StageFailed(failed, "its Python process did not start", by_expectation=False)

    def _start_one(self, stage: Stage, started: dict[str, StreamingQuery], *, once: bool) -> list[str]:
        """Start the stage's query; return its name if the start may be retried."""
        try:
            started[stage.name] = self._start(stage, once=once)
        except PySparkException as error:  # a Python process plans the source, too
            if _NOT_UP not in str(error):
                raise
            return [stage.name]
        return []

    @staticmethod
    def _see(started: dict[str, StreamingQuery]) -> list[str]:
        """Raise a stage's failure; return the stages whose Python process did not start, which may be retried."""
        late = []
        for name, query in started.items():
            error = None if query.isActive else query.exception()
            if error is not None and _NOT_UP in str(error):
                late.append(name)
            elif error is not None:
                why = cause(str(error))
                raise StageFailed(name, why, by_expectation=why.startswith("expectation "))
        return late

    def _end(self, started: dict[str, StreamingQuery]) -> None:
        for query in started.values():
            # A failed query raises again when it is stopped; its failure was handled.
            with suppress(PySparkException):
                query.stop()
        if self._reporter is not None:
            for query in started.values():
                self._reporter.wait_for_end(str(query.runId), END_SECONDS_MAX)


def _is_up(query: StreamingQuery) -> bool:
    """Return whether the sources of a query have started; true for one that has ended."""
    return not query.isActive or not query.status["message"].startswith("Initializing")


def cause(story: str) -> str:
    """Return the relevant line of a Java and Python error: what was raised on purpose, else the innermost error."""
    lines = [line.strip(_BLANKS) for line in story.splitlines() if line.strip(_BLANKS)]
    for line in lines:
        _, raised, rest = line.partition(_RAISED)
        if raised:
            return rest.partition(" SQLSTATE")[0]
    errors = [line for line in lines if _is_python_error(line)]
    inner = errors or [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (inner[-1] if inner else lines[0] if lines else "Spark gave no reason")[:500]


def _is_python_error(line: str) -> bool:
    """Match the last line of a traceback: `braidlog.client.errors.ConnectError: …`, `OptionError: …`."""
    name, colon, _ = line.partition(": ")
    return bool(colon) and name.replace(".", "").isidentifier() and name.endswith(("Error", "Failed", "Fault"))
