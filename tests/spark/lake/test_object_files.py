"""An Iceberg table in an object store, written and read by Spark's tasks: rows once, whatever the store refuses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.tables.object_store import BUCKET, ObjectStore, object_store

from braidlog.spark import lake
from braidlog.spark.lake.object_files import ObjectFiles

NAME = "lake.events"


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


class Lake:
    """A catalog in a file, of tables in the store."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self.catalog = {**store.told(folder / "catalog.db"), "warehouse": f"s3://{BUCKET}/{folder.name}"}
        self.options = {
            "table": "iceberg",
            "name": NAME,
            **{f"catalog.{name}": value for name, value in self.catalog.items()},
        }

    def ids(self) -> list[int]:
        """As pyiceberg reads them."""
        found = load_catalog("default", **self.catalog).load_table(NAME).scan().to_arrow()
        return sorted(found.column("id").to_pylist())

    def objects(self) -> set[str]:
        location = load_catalog("default", **self.catalog).load_table(NAME).location()
        return set(ObjectFiles(f"{location}/data", self.catalog).walk())

    def files(self) -> set[str]:
        return set(lake.files(None, "iceberg", name=NAME, catalog=self.catalog))


def test_rows_are_in_the_store_once(spark: SparkSession, store: ObjectStore, tmp_path: Path) -> None:
    own = Lake(store, tmp_path)
    rows = spark.range(0, 100, 1, 2).selectExpr("id", "id % 3 as kind")
    for number in (0, 1, 0):
        writer = rows.write.format("braidlog-lake").options(**own.options, partitionBy="kind")
        writer.options(sinkId="nightly", batchId=str(number)).mode("append").save()
    assert own.ids() == sorted([*range(100), *range(100)])
    assert own.objects() == own.files(), "what the replay wrote is removed"
    read = spark.read.format("braidlog-lake").options(**own.options).load()
    assert read.where("kind = 1").count() == 66

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
        .options(**(own.options | {"name": "lake.copied"}), checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copied = load_catalog("default", **own.catalog).load_table("lake.copied").scan().to_arrow()
    assert copied.num_rows == 200

    report = lake.compact(None, "iceberg", name=NAME, catalog=own.catalog, vacuum_age_seconds=0)
    assert (report.files_removed > report.files_added, len(own.files())) == (True, 3)
    assert own.ids() == sorted([*range(100), *range(100)])
    assert own.objects() == own.files()


def test_a_path_in_a_store_is_refused_by_name(spark: SparkSession) -> None:
    rows = spark.range(1)
    for table in lake.KINDS:
        with pytest.raises(PySparkException, match=r"object stores hold Iceberg tables, by name and catalog\.\*"):
            rows.write.format("braidlog-lake").options(table=table).mode("append").save(f"s3://{BUCKET}/x")
