"""Tables in an object store, written and read by Spark's tasks: rows once, whatever the store refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.tables.object_store import BUCKET, ObjectStore, object_store

from braidlog.spark import lake
from braidlog.spark.lake.delta import _storage_options
from braidlog.spark.lake.object_files import ObjectFiles
from braidlog.tables.catalog import open_catalog

NAME = "lake.events"


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


class Iceberg:
    """A catalog in a file, of tables in the store."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        warehouse = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"s3://{BUCKET}/{folder.name}",
        }
        self.place: dict[str, Any] = {"path": None, "table": "iceberg", "name": NAME}
        self.place |= {"catalog": warehouse, "store": store.properties}
        self.catalog = open_catalog("default", {**warehouse, **store.properties})
        told = {"table": "iceberg", "name": NAME} | options("catalog", warehouse) | options("store", store.properties)
        self.options, self.copy = told, told | {"name": "lake.copied"}

    def ids(self, name: str = NAME) -> list[int]:
        """As pyiceberg reads them."""
        return sorted(self.catalog.load_table(name).scan().to_arrow().column("id").to_pylist())

    def copied(self) -> list[int]:
        return self.ids("lake.copied")

    def folder(self) -> str:
        return f"{self.catalog.load_table(NAME).location()}/data"


class Delta:
    """Two tables below URIs of the store."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        path = f"s3://{BUCKET}/{folder.name}/events"
        self.place: dict[str, Any] = {"path": path, "table": "delta", "store": store.properties}
        told = {"table": "delta", **options("store", store.properties)}
        self.options, self.copy = told | {"path": path}, told | {"path": f"{path}-copied"}
        self._options = _storage_options(store.properties)

    def ids(self, more: str = "") -> list[int]:
        """As deltalake reads them."""
        found = DeltaTable(self.place["path"] + more, storage_options=self._options).to_pyarrow_table()
        return sorted(found.column("id").to_pylist())

    def copied(self) -> list[int]:
        return self.ids("-copied")

    def folder(self) -> str:
        return str(self.place["path"])


def options(prefix: str, properties: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}.{name}": value for name, value in properties.items()}


def objects(own: Iceberg | Delta, store: ObjectStore) -> set[str]:
    """The files with rows that are there."""
    return {path for path in ObjectFiles(own.folder(), store.properties).walk() if "_delta_log" not in path}


def files(own: Iceberg | Delta) -> set[str]:
    """Those that are the table."""
    return set(lake.files(**own.place))


@pytest.mark.parametrize("kind", [Iceberg, Delta])
def test_rows_are_in_the_store_once(
    spark: SparkSession, store: ObjectStore, tmp_path: Path, kind: type[Iceberg | Delta]
) -> None:
    own = kind(store, tmp_path)
    rows = spark.range(0, 100, 1, 2).selectExpr("id", "concat('a/b ', id % 3) as kind")
    for number in (0, 1, 0):
        writer = rows.write.format("braidlog-lake").options(**own.options, partitionBy="kind")
        writer.options(sinkId="nightly", batchId=str(number)).mode("append").save()
    assert own.ids() == sorted([*range(100), *range(100)])
    assert objects(own, store) == files(own), "what the replay wrote is removed"
    read = spark.read.format("braidlog-lake").options(**own.options).load()
    assert read.where("kind = 'a/b 1'").count() == 66

    store.fail_from(0, "throttled", about=".parquet")
    with pytest.raises(PySparkException, match="the store refused"):
        rows.write.format("braidlog-lake").options(**own.options, partitionBy="kind").mode("append").save()
    assert store.failed
    store.mend()
    assert len(own.ids()) == 200

    query = (
        spark.readStream.format("braidlog-lake")
        .options(**own.options)
        .load()
        .writeStream.format("braidlog-lake")
        .options(**own.copy, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert own.copied() == own.ids()

    report = lake.compact(**own.place, vacuum_age_seconds=0)
    assert (report.files_removed > report.files_added, len(files(own))) == (True, 3)
    assert own.ids() == sorted([*range(100), *range(100)])
    assert objects(own, store) == files(own)


def test_a_path_in_a_store_is_refused_by_name(spark: SparkSession) -> None:
    rows = spark.range(1)
    for table, path, said in (
        ("iceberg", f"s3://{BUCKET}/x", r"needs name and catalog\.\* instead of a path"),
        ("delta", "gs://bucket/x", "in an S3-compatible store"),
    ):
        with pytest.raises(PySparkException, match=said):
            rows.write.format("braidlog-lake").options(table=table).mode("append").save(path)
