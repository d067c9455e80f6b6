"""The pipeline's lake tables: how they are written, read again without a jar, put aside and made small in number of files.

Knows: what the sink `braidlog-lake` takes and leaves behind. Refuses to know: rows.
Invariant: what is read is what was committed: the files that the table's own log names, not those that lie in its folder.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from braidlog.spark.pipeline.project import Project

FORMAT: Final = "braidlog-lake"


def options(project: Project, table: str) -> dict[str, str]:
    settings = project.pipeline.tables
    return {
        "path": str(project.table(table)),
        "table": settings.format,
        "targetFileBytes": str(settings.target_file_bytes),
    }


def append(rows: DataFrame, project: Project, table: str) -> None:
    """A batch, all of it or nothing."""
    rows.write.format(FORMAT).options(**options(project, table)).mode("append").save()


def read(spark: SparkSession, project: Project, table: str, schema: StructType) -> DataFrame:
    """What was committed; nothing, in its form, before the first commit."""
    files = _FILES[project.pipeline.tables.format](project.table(table))
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", str(project.table(table))).parquet(*files)


def exists(project: Project, table: str) -> bool:
    return project.table(table).is_dir()


def _of_delta(path: Path) -> list[str]:
    from deltalake import DeltaTable  # noqa: PLC0415 - an extra
    from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

    try:
        return [str(uri) for uri in DeltaTable(str(path)).file_uris()]
    except TableNotFoundError:
        return []


def _of_parquet(path: Path) -> list[str]:
    return [str(path)] if path.is_dir() and any(path.rglob("*.parquet")) else []


def _of_iceberg(path: Path) -> list[str]:
    raise NotImplementedError(path)


_FILES: Final[dict[str, Callable[[Path], list[str]]]] = {
    "delta": _of_delta,
    "parquet": _of_parquet,
    "iceberg": _of_iceberg,
}


def put_aside(project: Project, table: str, generation: int) -> bool:
    """Make room for a table that is made anew; whether there was one."""
    old, place = project.table(table), project.replaced(table, generation)
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
