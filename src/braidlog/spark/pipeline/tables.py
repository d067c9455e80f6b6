"""The pipeline's lake tables: how they are written, read again without a jar, put aside and made small in number of files.

Knows: what the sink `braidlog-lake` takes and leaves behind. Refuses to know: rows.
Invariant: what is read is what was committed: the files that the table's own log names, not those that lie in its folder.
"""

import shutil
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from braidlog.spark import upsert
from braidlog.spark.lake import files
from braidlog.spark.pipeline.project import Project

FORMAT: Final = "braidlog-lake"


def options(project: Project, table: str) -> dict[str, str]:
    settings = project.pipeline.tables
    found = {
        "path": str(project.table(table)),
        "table": settings.format,
        "targetFileBytes": str(settings.target_file_bytes),
        "mergeSchema": "true" if settings.evolution == "add" else "false",
    }
    if columns := settings.partition_by.get(table):
        found["partitionBy"] = ",".join(columns)
    return found


def upserting(project: Project, table: str) -> upsert.Write:
    """What `foreachBatch` calls for a table with one row for each key: MERGE in one commit, each batch of a query once."""
    settings = project.pipeline.tables
    wanted = settings.upsert[table]
    write = upsert.delta if settings.format == "delta" else upsert.iceberg
    evolves = settings.evolution == "add"
    return write(str(project.table(table)), key=wanted.key, order=wanted.order, add_columns=evolves)


def append(rows: DataFrame, project: Project, table: str) -> None:
    """A batch, all of it or nothing."""
    rows.write.format(FORMAT).options(**options(project, table)).mode("append").save()


def read(spark: SparkSession, project: Project, table: str, schema: StructType) -> DataFrame:
    """What was committed; nothing, in its form, before the first commit."""
    path = str(project.table(table))
    found = files(path, project.pipeline.tables.format) if project.table(table).is_dir() else []
    if not found:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", path).parquet(*found)


def put_aside(project: Project, table: str, generation: int) -> bool:
    """Make room for a table that is made anew; whether there was one."""
    return move_aside(project.table(table), project.replaced(table, generation))


def move_aside(old: Path, place: Path) -> bool:
    if not old.is_dir():
        return False
    place.parent.mkdir(parents=True, exist_ok=True)
    old.rename(place)
    return True


def remove_aside(project: Project) -> None:
    """What was put aside is not needed any more."""
    shutil.rmtree(project.storage / "replaced", ignore_errors=True)


def replace(rows: DataFrame, project: Project, table: str) -> None:
    """A table that is made anew by every run."""
    put_aside(project, table, 0)
    append(rows, project, table)
    remove_aside(project)
