"""Backfill: adds a range of the log to the tables, beside the stream and without changing its checkpoints.

Does not handle: topics and keys: readers of a stream do not get old records. Existing rows are not added again, so
that a backfill can be repeated. Records that the stream has not read are left to it. Windows are added only if the
stream has closed them; existing windows do not change.
"""

from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from braidlog.spark.pipeline.checkpoints import Offsets, position
from braidlog.spark.pipeline.config import refusal
from braidlog.spark.pipeline.layers import gold, records, tables
from braidlog.spark.pipeline.layers.expectations import watched
from braidlog.spark.pipeline.ledger import Generation
from braidlog.spark.pipeline.project import Project
from braidlog.spark.pipeline.replay.replay import position_options
from braidlog.spark.pipeline.stage_runner import Runner
from braidlog.spark.pipeline.status import status

NOT_RUN: Final = "the pipeline has not run yet: run `braid pipeline run --once` to read all records"


class Filled(msgspec.Struct, frozen=True):
    """The number of rows added to each table; and, of aggregates such as windows, the number of existing rows of the
    range."""

    records: int
    added: dict[str, int]
    kept: dict[str, int]

    def sentences(self, would: str) -> list[str]:
        listed = ", ".join(f"{count} to {name}" for name, count in self.added.items())
        said = [f"{self.records} records in the range", f"{would}added: {listed}"]
        said += [
            f"{count} rows of {name} exist and do not change; `braid pipeline replay` recomputes them"
            for name, count in self.kept.items()
            if count
        ]
        return said


def check(project: Project, ends: Offsets) -> None:
    """Refuse while rows are in transit between layers: they would be added twice."""
    for table in ("silver", "windows"):
        if table in project.pipeline.tables.upsert:
            raise refusal(
                f"table {table} has one row per key ([tables.upsert]), and a backfill cannot add older rows below newer ones; "
                "`braid pipeline replay --from TIME` rebuilds it from there"
            )
    for stage in status(project, ends).stages:
        if stage.stage == "bronze" and stage.batch < 0:
            raise refusal(NOT_RUN)
        if stage.stage == "silver-table" and stage.lag:
            raise refusal(f"{stage.lag} rows are in transit to table silver: run `braid pipeline run --once` first")


def backfill(
    runner: Runner, project: Project, generation: Generation, start: str, end: str, ends: Offsets, *, dry_run: bool
) -> Filled:
    """Add the records of [start, end) to bronze, silver and windows, unless they exist there."""
    raw = read_range(runner.spark, project, start, end, ends).cache()
    try:
        bronze = _missing(
            records.as_it_came(raw.where(was_read(project, "bronze", generation))),
            tables.read(runner.spark, project, "bronze", raw.select(*records.as_it_came(raw).columns).schema),
            records.PLACE,
        ).cache()
        silver_stage = next(stage for stage in runner.stages if stage.name == "silver")
        rows = runner.layers.silver_rows(raw.where(was_read(project, "silver", generation)))
        rows = watched(rows, silver_stage.expectations).cache()
        silver = _missing(
            rows,
            tables.read(runner.spark, project, "silver", runner.layers.silver_schema),
            ("_id",),
        ).cache()
        counted = raw.count()
        added = {"bronze": bronze.count(), "silver": silver.count()}
        if not dry_run:
            tables.append(bronze, project, "bronze")
            tables.append(silver, project, "silver")
        windows, kept = _windows(runner, project, generation, rows, silver if dry_run else None)
        return Filled(counted, {**added, "windows": windows}, {"windows": kept})
    finally:
        runner.spark.catalog.clearCache()


def read_range(spark: SparkSession, project: Project, start: str, end: str, ends: Offsets) -> DataFrame:
    """Return the records of the source topics in [start, end)."""
    topic_ends = {topic: ends[topic] for topic in project.source.topics}
    options = {
        "servers": project.source.servers,
        "subscribe": ",".join(project.source.topics),
        "includeHeaders": "true",
        **position_options(topic_ends, start, "starting"),
        **position_options(topic_ends, end, "ending"),
    }
    return spark.read.format("braidlog").options(**options).load()


def was_read(project: Project, stage: str, generation: Generation) -> Column:
    """Return whether a stage's stream has read the record; unread records are the stream's to write."""
    read = position(project.checkpoint(stage, generation.of(stage))).offsets
    condition = f.lit(False)  # noqa: FBT003 - a literal
    for topic, partitions in read.items():
        for number, offset in partitions.items():
            here = (f.col("topic") == topic) & (f.col("partition") == number) & (f.col("offset") < offset)
            condition = condition | here
    return condition


def _missing(rows: DataFrame, table: DataFrame, by: tuple[str, ...]) -> DataFrame:
    return rows.join(table.select(*by).distinct(), list(by), "left_anti").select(*rows.columns)


def _windows(
    runner: Runner, project: Project, generation: Generation, ranged: DataFrame, planned: DataFrame | None
) -> tuple[int, int]:
    """Add the windows of the range's rows, computed from all rows of silver; return how many were added and how many
    existed. Rows that exist are included: after a crash a repeated backfill adds no rows, but must still add the
    windows. `planned`: rows that a dry run would add."""
    settings = project.pipeline.gold.windows
    if settings is None:
        return 0, 0
    table = tables.read(runner.spark, project, "silver", runner.layers.silver_schema)
    rows = table if planned is None else table.unionByName(planned)
    closed_ms = position(project.checkpoint("windows", generation.of("windows"))).watermark_ms
    by = ("window_start", *settings.by)
    touched = gold.windows(ranged, settings).select("window_start").distinct()
    summed = gold.windows(rows, settings).join(touched, "window_start", "left_semi")
    closed = summed.where(f.unix_millis("window_end") <= closed_ms)
    there = tables.read(runner.spark, project, "windows", runner.layers.windows_schema())
    # Groups may be null, and null never equals null.
    same = [there[f"{name}"].eqNullSafe(closed[name]) for name in by]
    new = closed.join(there, same, "left_anti").cache()
    count, all_closed = new.count(), closed.count()
    if planned is None and count:
        tables.append(new, project, "windows")
    return count, all_closed - count
