"""Tables, read by others than Spark and braidlog."""

from deltalake import DeltaTable
from pyarrow import Table
from pyspark.sql import Row

from braidlog.spark.lake.iceberg import local_catalog
from braidlog.spark.pipeline.project import Project
from braidlog.tables.catalogs import open_catalog


def rows_of(project: Project, table: str) -> list[Row]:
    """Read by others than Spark and braidlog: deltalake or pyiceberg."""
    path = str(project.table(table))
    return [Row(**row) for row in _READERS[project.pipeline.tables.format](path, table).to_pylist()]


def _read_delta(path: str, _table: str) -> Table:
    return DeltaTable(path).to_pyarrow_table()


def _read_iceberg(path: str, table: str) -> Table:
    return open_catalog("default", local_catalog(path)).load_table(f"default.{table}").scan().to_arrow()


_READERS = {"delta": _read_delta, "iceberg": _read_iceberg}
