"""What the definition files of a declarative pipeline are written with: flows from rows to rows, into tables and topics.

    layer = layers()

    @layer.table("bronze")
    def bronze(records: DataFrame) -> DataFrame:
        return records

Knows: which sink a layer is written to, and how Spark's own pipelines are told. Refuses to know: when they run.
Invariants: a flow writes one thing, through a sink that knows each micro-batch again; a function of a file is called with rows
and gives rows, of a stream or of a batch, so that a test can call it. A view is a function and no view of Spark's: behind Spark
Connect, `drop` and `dropDuplicates` look at what they are applied to at once, and find no view of a graph that is being made.
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
"""The source: records as they come."""
DEAD: Final = "dead_letters"
REASON: Final = "reason"


class Flow(msgspec.Struct, frozen=True):
    """A function of a file; a view, if it writes nothing."""

    name: str
    reads: str
    make: Frames
    writes: ToTable | ToTopic | None = None
    options: dict[str, str] = {}
    key: tuple[str, ...] = ()
    """The columns by which a row of its table is known again; none: the place of the record that it comes from."""
    until: str = ""
    """SQL over a row that sums up several records: the moment after which it does not change any more."""
    backfill: bool = True

    def sentence(self) -> str:
        """`silver: parsed → table silver`."""
        match self.writes:
            case ToTable(name):
                return f"{self.name}: {self.reads} → table {name}"
            case ToTopic(name):
                return f"{self.name}: {self.reads} → topic {name}"
            case None:
                return f"{self.name}: {self.reads} → view"


class Declared:
    """The flows of one project. `tell` hears of each; `is_batch`: functions are called with batches, not with streams."""

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
        """Rows that several flows read; they are not kept, but made for each of them."""
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
        """Rows into a table of the project. `options`: those of the format `braidlog-lake`, over what pipeline.toml says.

        For `braid pipeline backfill`: `key` names the columns by which a row is known again, and may be left out of rows that
        carry the place of their record, or went through `once`. `until`, of rows that sum up several records: SQL for the moment
        after which a row does not change any more, such as the end of its window. `backfill=False` leaves the table out."""
        if isinstance(key, str):
            raise refusal(f"{name}: key is a list of columns, such as [{key!r}]")
        if until and not key:
            raise refusal(f"{name}: until = {until!r} needs key = [...], the columns by which its rows are grouped")
        return self._declare(name, reads, ToTable(name), options, (tuple(key), until, backfill))

    def topic(self, name: str, topic: str = "", *, reads: str = RECORDS, **options: str) -> Callable[[Frames], Frames]:
        """Rows with a column `value` (and key, headers, …) into a topic, named after the pipeline unless it is told."""
        return self._declare(name, reads, ToTopic(topic or f"{self.project.name}.{name}"), options)

    def dead_letters(self, *, reads: str) -> Callable[[Frames], Frames]:
        """Records with a column `reason`: those for which it is not null go to the topic of dead letters, as they came."""

        def formed(make: Frames) -> Frames:
            def letters(rows: DataFrame) -> DataFrame:
                return silver.letters(make(rows), REASON, self.project.name, self.generation.latest)

            self._declare(DEAD, reads, ToTopic(self.project.dead_letter_topic))(letters)
            return make

        return formed

    def once(self, rows: DataFrame, *by: str, within: str = "1 hour", time: str = "") -> DataFrame:
        """Of rows that are equal in these columns, one. A stream remembers them for `within`, by its own clock, so that a late
        row is still a row; or by a column `time`, whose watermark then also tells late rows, which are left out."""
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
                views = [RECORDS, *[each.name for each in self.flows.values() if each.writes is None]]
                raise refusal(f"{name} reads {reads!r}, which is no view above it; there are {', '.join(views)}")
            self.flows[name] = Flow(name, reads, make, writes, options or {}, *known_by)
            self._tell(self, self.flows[name])
            return make

        return declare

    def rows(self, name: str, read: DataFrame) -> DataFrame:
        """What a flow makes of records, stream or batch, by way of the views it reads; with its expectations."""
        expected = tuple(each for each in self.project.pipeline.expectations if each.stage == name)
        return watched(self._made(name, read), expected)

    def known_rows(self, name: str, read: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
        """What a flow makes of a batch, and the columns that the last `once` on the way has told its rows apart by, if any."""
        assert self.is_batch
        self._told_apart = ()
        return self.rows(name, read), self._told_apart

    def _made(self, name: str, read: DataFrame) -> DataFrame:
        if name == RECORDS:
            return read
        return self.flows[name].make(self._made(self.flows[name].reads, read))

    def source_options(self, flow: str) -> dict[str, str]:
        source = self.project.source
        found = {
            "servers": source.servers,
            "subscribe": ",".join(source.topics),
            "includeHeaders": "true",
            "groupId": f"{source.group or self.project.name}.{flow}",
        }
        if source.max_records_per_batch:
            found["maxOffsetsPerTrigger"] = str(source.max_records_per_batch)
        return found | self.generation.starts.get(RECORDS, {"startingOffsets": source.starting})


_opened: ContextVar[Declared | None] = ContextVar("declared", default=None)


def layers() -> Declared:
    """Of the pipeline.toml in whose folder the definitions are loaded."""
    found = _opened.get()
    if found is None:  # loaded by `spark-pipelines`, which goes into the folder
        project = open_project(Path.cwd())
        found = Declared(project, Ledger(project.storage).generation(), register, is_batch=False)
    return found


@contextmanager
def declaring(found: Declared) -> Iterator[Declared]:
    """What files declare while they are loaded."""
    token = _opened.set(found)
    try:
        yield found
    finally:
        _opened.reset(token)
    names = [flow.name for flow in found.flows.values() if flow.writes is not None]
    if unknown := [each for each in found.project.pipeline.expectations if each.stage not in names]:
        raise refusal(
            f"[[expectations]] {unknown[0].name}: there is no flow {unknown[0].stage!r}; there are {', '.join(names)}"
        )
    made = [flow.name for flow in found.flows.values() if isinstance(flow.writes, ToTable)]
    if others := [name for name in found.project.pipeline.tables.partition_by if name not in made]:
        raise refusal(f"[tables.partition_by] {others[0]}: there is no such table; there are {', '.join(made)}")


def register(declared: Declared, flow: Flow) -> None:
    """Tell Spark's own pipelines of a flow: a sink, and what is appended to it."""
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
