"""The pipeline's lake tables: writing, reading without a jar, replacing, compacting.

Readers see committed data only: the files that the table's log names, not all files in its folder. Does not handle:
rows.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from braidlog.spark import upsert
from braidlog.spark.lake import files
from braidlog.spark.lake.contract import Table
from braidlog.spark.lake.tables import open_table
from braidlog.spark.pipeline.ledger import Ledger
from braidlog.spark.pipeline.project import Project

FORMAT: Final = "braidlog-lake"


class Place(NamedTuple):
    """The location of a table: a folder or a URI, or a name in a catalog; and the store's properties."""

    path: str | None
    name: str | None = None
    catalog: dict[str, str] = {}  # noqa: RUF012 - never changed
    store: dict[str, str] = {}  # noqa: RUF012 - as above


def place(project: Project, table: str) -> Place:
    """Return the location of a table."""
    settings = project.pipeline.tables
    if not project.is_in_store:
        return Place(str(project.table(table)))
    if settings.format == "delta":
        return Place(project.place(table), store=settings.store)
    return Place(
        None, project.place(table), {"warehouse": project.pipeline.storage, **settings.catalog}, settings.store
    )


def opened(project: Project, table: str) -> Table:
    """Open the table, with its required edition."""
    at, edition = place(project, table), _edition(project, table)
    return open_table(
        project.pipeline.tables.format, at.path, name=at.name, catalog=at.catalog, store=at.store, edition=edition
    )


def _edition(project: Project, table: str) -> str | None:
    """Return the edition of a table in an object store, which distinguishes a rebuilt table: nothing is renamed
    there."""
    return Ledger(project.storage).generation().edition(table) if project.is_in_store else None


def found_by(project: Project, table: str) -> dict[str, str]:
    """Return the options of the format `braidlog-lake` for reading a table."""
    at = place(project, table)
    named = {"path": at.path, "name": at.name, "table": project.pipeline.tables.format}
    more = {f"catalog.{name}": value for name, value in at.catalog.items()}
    more |= {f"store.{name}": value for name, value in at.store.items()}
    return {name: value for name, value in named.items() if value is not None} | more


def options(project: Project, table: str) -> dict[str, str]:
    settings = project.pipeline.tables
    table_options = found_by(project, table) | {
        "targetFileBytes": str(settings.target_file_bytes),
        "mergeSchema": "true" if settings.evolution == "add" else "false",
    }
    if columns := settings.partition_by.get(table):
        table_options["partitionBy"] = ",".join(columns)
    if edition := _edition(project, table):
        table_options["edition"] = edition
    return table_options


def upserting(project: Project, table: str) -> upsert.Write:
    """Return the `foreachBatch` function of a table with one row per key: MERGE in one commit, each batch once."""
    settings = project.pipeline.tables
    merge = settings.upsert[table]
    return upsert.into(partial(opened, project, table), merge.key, merge.order, add_columns=settings.evolution == "add")


def append(rows: DataFrame, project: Project, table: str, own: dict[str, str] | None = None) -> None:
    """Append a batch atomically. `own`: options that override those of the pipeline's file."""
    rows.write.format(FORMAT).options(**options(project, table) | (own or {})).mode("append").save()


def read(spark: SparkSession, project: Project, table: str, schema: StructType) -> DataFrame:
    """Return the committed rows; an empty frame with this schema before the first commit."""
    if project.is_in_store:  # Spark's own reader would need a jar for each store
        if not paths(project, table):
            return spark.createDataFrame([], schema)
        return spark.read.format(FORMAT).schema(schema).options(**found_by(project, table)).load()
    path = str(project.table(table))
    files = paths(project, table) if project.table(table).is_dir() else []
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", path).parquet(*files)


def paths(project: Project, table: str) -> list[str]:
    at = place(project, table)
    return files(at.path, project.pipeline.tables.format, name=at.name, catalog=at.catalog, store=at.store)


def put_aside(project: Project, table: str, generation: int) -> bool:
    """Move a table aside that is to be rebuilt; return whether it existed."""
    return move_aside(project.table(table), project.replaced(table, generation))


def move_aside(old: Path, place: Path) -> bool:
    if not old.is_dir():
        return False
    place.parent.mkdir(parents=True, exist_ok=True)
    old.rename(place)
    return True


def remove_aside(project: Project) -> None:
    """Remove the tables that were moved aside."""
    if project.is_in_store:
        for table in Ledger(project.storage).generation().tables:
            opened(project, table).forget_earlier()
    shutil.rmtree(project.storage / "replaced", ignore_errors=True)


def replace(rows: DataFrame, project: Project, table: str) -> None:
    """Replace a table that every run rebuilds."""
    put_aside(project, table, 0)
    append(rows, project, table)
    remove_aside(project)
