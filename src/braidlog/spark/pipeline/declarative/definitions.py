"""Decorators for the definition files of a declarative pipeline: flows turn rows into rows, for tables and topics.

    layer = layers()

    @layer.table("bronze")
    def bronze(records: DataFrame) -> DataFrame:
        return records

Does not handle: when flows run. A flow writes one output, through a sink that recognizes repeated micro-batches. A
flow's function takes and returns rows of a stream or of a batch, so that a test can call it. A view is a plain
function, not a Spark view: behind Spark Connect, `drop` and `dropDuplicates` analyse their input immediately, and
cannot find a view of a graph that is still being defined.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from braidlog.spark.pipeline.config import refusal
from braidlog.spark.pipeline.layers import records, silver, tables
from braidlog.spark.pipeline.layers.expectations import watched
from braidlog.spark.pipeline.ledger import Generation, Ledger
from braidlog.spark.pipeline.project import Project, open_project
from braidlog.spark.pipeline.stages import Frames, ToTable, ToTopic

RECORDS: Final = "records"
"""The name of the source: the raw records."""
DEAD: Final = "dead_letters"
REASON: Final = "reason"


class Flow(msgspec.Struct, frozen=True):
    """A function of a definition file; a view if it writes nothing."""

    name: str
    reads: str
    make: Frames
    writes: ToTable | ToTopic | None = None
    options: dict[str, str] = {}
    key: tuple[str, ...] = ()
    """The columns that identify a row of its table; empty: the position of its source record."""
    until: str = ""
    """SQL over an aggregated row: the time after which it no longer changes."""
    backfill: bool = True

    def sentence(self) -> str:
        """Return a summary such as `silver: parsed → table silver`."""
        match self.writes:
            case ToTable(name):
                return f"{self.name}: {self.reads} → table {name}"
            case ToTopic(name):
                return f"{self.name}: {self.reads} → topic {name}"
            case None:
                return f"{self.name}: {self.reads} → view"


class Declared:
    """The flows of one project. `tell` is called for each; `is_batch`: functions receive batches instead of
    streams."""

    def __init__(
        self, project: Project, generation: Generation, tell: Callable[["Declared", Flow], None], *, is_batch: bool
    ) -> None:
        self.project = project
        self.generation = generation
        self.is_batch = is_batch
        self.flows: dict[str, Flow] = {}
        self._tell = tell
        self._told_apart: tuple[str, ...] = ()

    def view(self, name: str, *, reads: str = RECORDS) -> Callable[[Frames], Frames]:
        """Declare rows that several flows read; they are not stored, but computed for each flow."""
        return self._declare(name, reads, None)

    def table(
        self,
        name: str,
        *,
        reads: str = RECORDS,
        key: Sequence[str] = (),
        until: str = "",
        backfill: bool = True,
        **options: str,
    ) -> Callable[[Frames], Frames]:
        """Declare a table of the project. `options`: options of the format `braidlog-lake`, which override
        pipeline.toml.

        For `braid pipeline backfill`: `key` names the columns that identify a row. It may be omitted if rows carry
        the position of their record, or went through `once`. `until`, for aggregated rows: SQL for the time after
        which a row no longer changes, such as the end of its window. `backfill=False` excludes the table."""
        if isinstance(key, str):
            raise refusal(f"{name}: key must be a list of columns, such as [{key!r}]")
        if until and not key:
            raise refusal(f"{name}: until = {until!r} needs key = [...], the columns by which its rows are grouped")
        return self._declare(name, reads, ToTable(name), options, (tuple(key), until, backfill))

    def topic(self, name: str, topic: str = "", *, reads: str = RECORDS, **options: str) -> Callable[[Frames], Frames]:
        """Write rows with a column `value` (and key, headers, …) to a topic; by default it is named after the
        pipeline."""
        return self._declare(name, reads, ToTopic(topic or f"{self.project.name}.{name}"), options)

    def dead_letters(self, *, reads: str) -> Callable[[Frames], Frames]:
        """Write records whose column `reason` is not null to the dead-letter topic, unchanged."""

        def formed(make: Frames) -> Frames:
            def letters(rows: DataFrame) -> DataFrame:
                return silver.letters(make(rows), REASON, self.project.name, self.generation.latest)

            self._declare(DEAD, reads, ToTopic(self.project.dead_letter_topic))(letters)
            return make

        return formed

    def once(self, rows: DataFrame, *by: str, within: str = "1 hour", time: str = "") -> DataFrame:
        """Keep one of the rows that are equal in these columns. A stream remembers them for `within`, by processing
        time, so that late rows are kept; or by a column `time`, whose watermark then also drops late rows."""
        if self.is_batch:
            self._told_apart = by
            return rows.dropDuplicates(list(by))
        if time:
            return rows.withWatermark(time, within).dropDuplicatesWithinWatermark(list(by))
        seen = rows.withColumn("_seen", f.current_timestamp()).withWatermark("_seen", within)
        return seen.dropDuplicatesWithinWatermark(list(by)).drop("_seen")

    # -- what flows are made of ------------------------------------------------------------------------------------

    def _declare(
        self,
        name: str,
        reads: str,
        writes: ToTable | ToTopic | None,
        options: dict[str, str] | None = None,
        known_by: tuple[tuple[str, ...], str, bool] = ((), "", True),
    ) -> Callable[[Frames], Frames]:
        def declare(make: Frames) -> Frames:
            if name in self.flows or name == RECORDS:
                raise refusal(f"{name!r} is declared twice")
            if reads != RECORDS and (reads not in self.flows or self.flows[reads].writes is not None):
                views = [RECORDS, *[flow.name for flow in self.flows.values() if flow.writes is None]]
                raise refusal(f"{name} reads {reads!r}, which is not a view above it; the views are {', '.join(views)}")
            self.flows[name] = Flow(name, reads, make, writes, options or {}, *known_by)
            self._tell(self, self.flows[name])
            return make

        return declare

    def rows(self, name: str, read: DataFrame) -> DataFrame:
        """Return a flow's rows of these records, stream or batch, through the views that it reads; with its
        expectations."""
        expected = tuple(expectation for expectation in self.project.pipeline.expectations if expectation.stage == name)
        return watched(self._made(name, read), expected)

    def known_rows(self, name: str, read: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
        """Return a flow's rows of a batch, and the columns of the last `once` before it, if any."""
        assert self.is_batch
        self._told_apart = ()
        return self.rows(name, read), self._told_apart

    def _made(self, name: str, read: DataFrame) -> DataFrame:
        if name == RECORDS:
            return read
        return self.flows[name].make(self._made(self.flows[name].reads, read))

    def source_options(self, flow: str) -> dict[str, str]:
        source = self.project.source
        options = {
            "servers": source.servers,
            "subscribe": ",".join(source.topics),
            "includeHeaders": "true",
            "groupId": f"{source.group or self.project.name}.{flow}",
        }
        if source.max_records_per_batch:
            options["maxOffsetsPerTrigger"] = str(source.max_records_per_batch)
        return options | self.generation.starts.get(RECORDS, {"startingOffsets": source.starting})


_opened: ContextVar[Declared | None] = ContextVar("declared", default=None)


def layers() -> Declared:
    """Return the declarations of the pipeline.toml in whose folder the definitions are loaded."""
    declared = _opened.get()
    if declared is None:  # loaded by `spark-pipelines`, which changes into the folder
        project = open_project(Path.cwd())
        declared = Declared(project, Ledger(project.storage).generation(), register, is_batch=False)
    return declared


@contextmanager
def declaring(declared: Declared) -> Iterator[Declared]:
    """Collect the declarations of files while they are loaded."""
    token = _opened.set(declared)
    try:
        yield declared
    finally:
        _opened.reset(token)
    names = [flow.name for flow in declared.flows.values() if flow.writes is not None]
    if unknown := [
        expectation for expectation in declared.project.pipeline.expectations if expectation.stage not in names
    ]:
        raise refusal(
            f"[[expectations]] {unknown[0].name}: unknown flow {unknown[0].stage!r}; the flows are {', '.join(names)}"
        )
    made = [flow.name for flow in declared.flows.values() if isinstance(flow.writes, ToTable)]
    if others := [name for name in declared.project.pipeline.tables.partition_by if name not in made]:
        raise refusal(f"[tables.partition_by] {others[0]}: unknown table; the tables are {', '.join(made)}")


def register(declared: Declared, flow: Flow) -> None:
    """Register a flow with Spark's pipelines: a sink, and an append flow."""
    from pyspark import pipelines as dp  # noqa: PLC0415 - Spark Connect, an extra

    spark = SparkSession.active()

    def made() -> DataFrame:
        read = spark.readStream.format("braidlog").options(**declared.source_options(flow.name)).load()
        return declared.rows(flow.name, records.as_it_came(read))

    match flow.writes:
        case None:
            return
        case ToTable(table):
            dp.create_sink(flow.name, tables.FORMAT, {**tables.options(declared.project, table), **flow.options})
        case ToTopic(topic):
            servers = declared.project.source.servers
            dp.create_sink(flow.name, "braidlog", {"servers": servers, "topic": topic, **flow.options})
    dp.append_flow(target=flow.name, name=flow.name)(made)
