"""The pipeline of kind `wire-log`: turns a wire log into three tables and a page.

A run replaces the previous results: the same log gives the same tables and page. Does not handle: parsing the log,
page layout.
"""

from datetime import UTC
from pathlib import Path

import msgspec
from pyspark.sql import Row, SparkSession

from braidlog.spark.pipeline.config import refusal
from braidlog.spark.pipeline.layers import tables
from braidlog.spark.pipeline.page import Bin, Command, Dialect, page
from braidlog.spark.pipeline.project import Project
from braidlog.spark.pipeline.wire_log import exchange_tables


class Analysed(msgspec.Struct, frozen=True):
    page: Path
    requests: int
    dialects: tuple[Dialect, ...]


def analyse(spark: SparkSession, project: Project) -> Analysed:
    settings = project.pipeline.wire_log
    assert settings is not None
    rows = exchange_tables.exchanges(exchange_tables.read(spark, str(project.folder / settings.log))).cache()
    try:
        covered = exchange_tables.span(rows)
        if covered is None:
            raise refusal(f"{settings.log} has no messages: is it a wire log in JSON format?")
        made = {
            "exchanges": rows,
            "commands": exchange_tables.commands(rows, covered.seconds),
            "bins": exchange_tables.bins(rows, covered, settings.bins),
        }
        for name, frame in made.items():
            tables.replace(frame, project, name)
        dialects = _dialects(made["commands"].collect(), made["bins"].collect())
        requests = rows.count()
    finally:
        rows.unpersist()
    path = project.folder / settings.page
    first, last = (f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for moment in covered)  # Spark returns local time
    path.write_text(page(settings.title, first, last, dialects, settings.bins), encoding="utf-8")
    return Analysed(path, requests, dialects)


def _dialects(commands: list[Row], bins: list[Row]) -> tuple[Dialect, ...]:
    names = sorted({row.dialect for row in commands})
    return tuple(
        Dialect(
            name,
            tuple(msgspec.convert(row.asDict(), Command) for row in commands if row.dialect == name),
            tuple(msgspec.convert(row.asDict(), Bin) for row in bins if row.dialect == name),
        )
        for name in names
    )
