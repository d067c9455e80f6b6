"""Tables, read by others than Spark and braidlog."""

from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import Row

from braidlog.spark.pipeline.project import Project


def rows_of(project: Project, table: str) -> list[Row]:
    """Read by others than Spark and braidlog: deltalake, or pyarrow over the folder."""
    path = str(project.table(table))
    is_delta = project.pipeline.tables.format == "delta"
    found = DeltaTable(path).to_pyarrow_table() if is_delta else parquet.read_table(path)
    return [Row(**row) for row in found.to_pylist()]
