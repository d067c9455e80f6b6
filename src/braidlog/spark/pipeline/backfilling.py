"""Backfill: a range of the log that the tables lack is put into them, beside the stream and without touching its checkpoints.

Knows: what a range is, and what tables hold already. Refuses to know: topics and keys: a stream's readers are not told old news.
Invariants: a row that a table has is not added again, so that a backfill can be repeated; what the stream has not read yet is
left to it; windows are added only if the stream has closed them, and those that are there stay as they are.
"""

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from braidlog.spark.pipeline import gold, records, tables
from braidlog.spark.pipeline.checkpoints import Offsets, position
from braidlog.spark.pipeline.config import refusal
from braidlog.spark.pipeline.expectations import watched
from braidlog.spark.pipeline.ledger import Generation
from braidlog.spark.pipeline.project import Project
from braidlog.spark.pipeline.replaying import position_options
from braidlog.spark.pipeline.running import Runner
from braidlog.spark.pipeline.status import status


class Filled(msgspec.Struct, frozen=True):
    """How many rows each table got, and how many windows of the range were there already."""

    records: int
    bronze: int
    silver: int
    windows: int
    windows_kept: int


def check(project: Project, ends: Offsets) -> None:
    """Rows on their way between layers would come twice: refused until they have arrived."""
    for table in ("silver", "windows"):
        if table in project.pipeline.tables.upsert:
            raise refusal(
                f"table {table} has one row for each key ([tables.upsert]), and older ones are not put under newer ones; "
                "`braid pipeline replay --from TIME` makes it anew from there on"
            )
    for stage in status(project, ends).stages:
        if stage.stage == "bronze" and stage.batch < 0:
            raise refusal("the pipeline has not run yet: `braid pipeline run --once` reads all there is")
        if stage.stage == "silver-table" and stage.lag:
            raise refusal(f"{stage.lag} rows are on their way to table silver: `braid pipeline run --once` first")


def backfill(
    runner: Runner, project: Project, generation: Generation, start: str, end: str, ends: Offsets, *, dry_run: bool
) -> Filled:
    """Put the records of [start, end) into bronze, silver and windows, as far as they are not there."""
    raw = _range(runner, project, start, end, ends).cache()
    try:
        bronze = _missing(
            records.as_it_came(raw.where(_was_read(project, "bronze", generation))),
            tables.read(runner.spark, project, "bronze", raw.select(*records.as_it_came(raw).columns).schema),
            records.PLACE,
        ).cache()
        silver_stage = next(stage for stage in runner.stages if stage.name == "silver")
        rows = runner.layers.silver_rows(raw.where(_was_read(project, "silver", generation)))
        silver = _missing(
            watched(rows, silver_stage.expectations),
            tables.read(runner.spark, project, "silver", runner.layers.silver_schema),
            ("_id",),
        ).cache()
        counted = raw.count(), bronze.count(), silver.count()
        if not dry_run:
            tables.append(bronze, project, "bronze")
            tables.append(silver, project, "silver")
        windows, kept = _windows(runner, project, generation, silver, dry_run=dry_run)
        return Filled(*counted, windows, kept)
    finally:
        runner.spark.catalog.clearCache()


def _range(runner: Runner, project: Project, start: str, end: str, ends: Offsets) -> DataFrame:
    found = {topic: ends[topic] for topic in project.source.topics}
    options = {
        "servers": project.source.servers,
        "subscribe": ",".join(project.source.topics),
        "includeHeaders": "true",
        **position_options(found, start, "starting"),
        **position_options(found, end, "ending"),
    }
    return runner.spark.read.format("braidlog").options(**options).load()


def _was_read(project: Project, stage: str, generation: Generation) -> Column:
    """What a stage's stream has behind it; the rest is its own to write."""
    read = position(project.checkpoint(stage, generation.of(stage))).offsets
    found = f.lit(False)  # noqa: FBT003 - a literal
    for topic, partitions in read.items():
        for number, offset in partitions.items():
            here = (f.col("topic") == topic) & (f.col("partition") == number) & (f.col("offset") < offset)
            found = found | here
    return found


def _missing(rows: DataFrame, table: DataFrame, by: tuple[str, ...]) -> DataFrame:
    return rows.join(table.select(*by).distinct(), list(by), "left_anti").select(*rows.columns)


def _windows(
    runner: Runner, project: Project, generation: Generation, added: DataFrame, *, dry_run: bool
) -> tuple[int, int]:
    """Windows that the added rows belong to, out of all rows of silver; how many were added and how many were there."""
    settings = project.pipeline.gold.windows
    if settings is None:
        return 0, 0
    table = tables.read(runner.spark, project, "silver", runner.layers.silver_schema)
    rows = table.unionByName(added) if dry_run else table
    closed_ms = position(project.checkpoint("windows", generation.of("windows"))).watermark_ms
    by = ("window_start", *settings.by)
    touched = gold.windows(added, settings).select("window_start").distinct()
    summed = gold.windows(rows, settings).join(touched, "window_start", "left_semi")
    closed = summed.where(f.unix_millis("window_end") <= closed_ms)
    there = tables.read(runner.spark, project, "windows", runner.layers.windows_schema())
    # Groups may be null, and null is equal to nothing.
    same = [there[f"{name}"].eqNullSafe(closed[name]) for name in by]
    new = closed.join(there, same, "left_anti").cache()
    count, all_closed = new.count(), closed.count()
    if not dry_run and count:
        tables.append(new, project, "windows")
    return count, all_closed - count
