"""Stages become streaming queries: all that there is, wave by wave, or on and on.

Knows: how a query is started, waited for and stopped. Refuses to know: what a stage computes, signals, terminals.
Invariants: a stage whose query fails stops all others, unless only its Python process did not start: then it is started again;
a run that is stopped leaves checkpoints at which the next run begins; each sink counts a micro-batch once, so that one that
was abandoned is done again without a trace.
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
"""Of a run with `--once`; a continuous one tries again for as long as it runs."""
PAUSE_SECONDS: Final = 1.0
"""Before a stage is started again; twice as long each time, up to the next."""
PAUSE_SECONDS_MAX: Final = 60.0
UPSERT_RECORDS_MAX: Final = 100_000
"""A micro-batch that is merged into a table is in the driver's memory."""
_NOT_UP: Final = "Python worker failed to connect back"
"""Spark's only word for a process that took longer than ten seconds to start; each sink counts what is done again once."""
_RAISED: Final = "[USER_RAISED_EXCEPTION] "
_BLANKS: Final = "\t "


class StageFailed(Exception):  # noqa: N818 - what it says
    """A stage's query ended by itself. `why` is the line of Spark's story that tells it."""

    def __init__(self, stage: str, why: str, *, by_expectation: bool) -> None:
        super().__init__(f"stage {stage} failed: {why}")
        self.stage = stage
        self.why = why
        self.by_expectation = by_expectation


class StopRequest:
    """A wish to stop that a signal handler may make while its own thread waits for it.

    `threading.Event` cannot: `set` in the handler would wait for the lock that the interrupted `wait` holds.
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
        """Whether it was wished before the time was over."""
        if self._gate.acquire(timeout=seconds):
            self._gate.release()
        return self._is_set


class Stopped(Exception):  # noqa: N818 - what it says
    """Told to stop, and stopped."""


def connect(project: Project) -> Client:
    """The node that has the project's topics. A person waits: who does not answer soon is not there."""
    return braidlog.connect(servers_of.parse(project.source.servers), retry_timeout=FIRST_ANSWER_SECONDS_MAX)


def ends(client: Client, topics: Iterable[str]) -> Offsets:
    """The next offset of every partition, as the server knows it."""
    return {
        topic: {number: span.latest for number, span in enumerate(client.admin.describe_topic(topic).partitions)}
        for topic in topics
    }


def ensure_topics(project: Project, topics: Iterable[str]) -> None:
    """Make those that are not there, with as many partitions as the source has."""
    with connect(project) as client:
        partitions = max(len(found) for found in ends(client, project.source.topics).values())
        for topic in topics:
            client.admin.ensure_topic(topic, partitions)


class Runner:
    """The stages of one project in one session."""

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
        """See that the source is there, and make the topics of layers that are not."""
        ensure_topics(self._project, [stage.writes.topic for stage in self.stages if isinstance(stage.writes, ToTopic)])

    def once(self, stop: StopRequest, only: frozenset[str] = frozenset()) -> None:
        """Everything that is there now, through all layers: a layer is read when all that write it are done."""
        chosen = [stage for stage in self.stages if not only or stage.name in only]
        for wave in sorted({stage.wave for stage in chosen}):
            self._attend([stage for stage in chosen if stage.wave == wave], stop, once=True)

    def forever(self, stop: StopRequest, only: frozenset[str] = frozenset()) -> None:
        """Until told to stop."""
        self._attend([stage for stage in self.stages if not only or stage.name in only], stop)

    # -- reading and writing -------------------------------------------------------------------------------------

    def read_options(self, stage: Stage) -> dict[str, str]:
        """How a stage reads its layer."""
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
        """What a stage that writes to a topic makes of a batch of records, outside of its stream: once in each generation."""
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
                    # Setting a key again to what it is changes nothing: a batch that is done twice is done once.
                    last(batch).write.format("braidlog-kv").options(servers=servers).mode("append").save()

                return writer.foreachBatch(put)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _attend(self, stages: list[Stage], stop: StopRequest, *, once: bool = False) -> None:
        """Start queries, see to them until they end or are told to, and leave none behind."""
        started: dict[str, StreamingQuery] = {}
        attempts: Counter[str] = Counter()
        due = {stage.name: 0.0 for stage in stages}
        failed = ""
        try:
            while due or any(query.isActive for query in started.values()):
                # One at a time: Spark gives the Python process of each source ten seconds to come up, however busy it is.
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
            raise StageFailed(failed, "its Python process does not start", by_expectation=False)

    def _start_one(self, stage: Stage, started: dict[str, StreamingQuery], *, once: bool) -> list[str]:
        """Add the stage's query; its name if that may be tried again."""
        try:
            started[stage.name] = self._start(stage, once=once)
        except PySparkException as error:  # the source is planned by a Python process, too
            if _NOT_UP not in str(error):
                raise
            return [stage.name]
        return []

    @staticmethod
    def _see(started: dict[str, StreamingQuery]) -> list[str]:
        """Raise what a stage has failed with; name those that Spark gave no process to, which may be tried again."""
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
            # One that failed says so again when it is stopped; it was seen.
            with suppress(PySparkException):
                query.stop()
        if self._reporter is not None:
            for query in started.values():
                self._reporter.wait_for_end(str(query.runId), END_SECONDS_MAX)


def _is_up(query: StreamingQuery) -> bool:
    """Whether the sources of a query are there; also of one that has ended."""
    return not query.isActive or not query.status["message"].startswith("Initializing")


def cause(story: str) -> str:
    """The line of a Java and Python story that a person wants: what was raised on purpose, else the innermost error."""
    lines = [line.strip(_BLANKS) for line in story.splitlines() if line.strip(_BLANKS)]
    for line in lines:
        _, raised, rest = line.partition(_RAISED)
        if raised:
            return rest.partition(" SQLSTATE")[0]
    errors = [line for line in lines if _is_python_error(line)]
    inner = errors or [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (inner[-1] if inner else lines[0] if lines else "Spark gives no reason")[:500]


def _is_python_error(line: str) -> bool:
    """`braidlog.client.errors.ConnectError: …`, `OptionError: …`: the last line of a traceback."""
    name, colon, _ = line.partition(": ")
    return bool(colon) and name.replace(".", "").isidentifier() and name.endswith(("Error", "Failed", "Fault"))
