"""Tables, read by others than Spark and braidlog; and a pipeline's writes to them, cut short."""

from collections.abc import Callable

from deltalake import DeltaTable
from pyarrow import Table
from pyspark.sql import DataFrame, Row

from braidlog.spark.lake.delta import _storage_options
from braidlog.spark.lake.iceberg import local_catalog
from braidlog.spark.pipeline.project import Project
from braidlog.tables.catalog import open_catalog


def rows_of(project: Project, table: str) -> list[Row]:
    """Read by others than Spark and braidlog: deltalake or pyiceberg."""
    if project.is_in_store:
        return [Row(**row) for row in read_from_store(project, table).to_pylist()]
    path = str(project.table(table))
    return [Row(**row) for row in _READERS[project.pipeline.tables.format](path, table).to_pylist()]


def read_from_store(project: Project, table: str) -> Table:
    """By who knows the table's place and the store."""
    place, settings = project.place(table), project.pipeline.tables
    if settings.format == "delta":
        return DeltaTable(place, storage_options=_storage_options(settings.store)).to_pyarrow_table()
    return open_catalog("default", {**settings.catalog, **settings.store}).load_table(place).scan().to_arrow()


def _read_delta(path: str, _table: str) -> Table:
    return DeltaTable(path).to_pyarrow_table()


def _read_iceberg(path: str, table: str) -> Table:
    return open_catalog("default", local_catalog(path)).load_table(f"default.{table}").scan().to_arrow()


_READERS = {"delta": _read_delta, "iceberg": _read_iceberg}


class Cut:
    """`tables.append` until a table's turn comes: all that a process which dies there has done."""

    class Short(Exception):  # noqa: N818 - what it is
        pass

    def __init__(self, append: Callable[..., None], table: str) -> None:
        self._append = append
        self._table = table

    def __call__(self, rows: DataFrame, project: Project, table: str, own: dict[str, str] | None = None) -> None:
        if table == self._table:
            raise Cut.Short
        self._append(rows, project, table, own)
