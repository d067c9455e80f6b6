"""What a backfill finds lacking in the tables of a declarative pipeline's flows, of rows that are at hand; no node, no stream."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.spark.pipeline.declarative.test_engine import written
from tests.spark.pipeline.tables import rows_of
from tests.spark.pipeline.test_parts import write_checkpoint

from braidlog import BrokerError
from braidlog.spark.pipeline.declarative.backfill import Backfill, _key
from braidlog.spark.pipeline.declarative.definitions import Declared, Flow
from braidlog.spark.pipeline.layers import records
from braidlog.spark.pipeline.ledger import Generation
from braidlog.spark.pipeline.project import Project

START = datetime(2026, 5, 1, 8, tzinfo=UTC)
READ = 6
"""As far as the flows have read; there is one more record."""
DEFINITIONS = """
from pyspark.sql import functions as f

from braidlog.spark.pipeline.declarative.definitions import layers

layer = layers()


@layer.table("bronze", sinkId="mine")
def bronze(records):
    return records


@layer.view("keyed")
def keyed(records):
    return records.select(f.col("key").cast("string").alias("id"), f.col("value").cast("string").alias("v"), "timestamp")


@layer.table("once", reads="keyed")
def once(keyed):
    return layer.once(keyed.select("id", "v"), "id")


@layer.table("minutes", reads="keyed", key=["minute", "id"], until="minute + INTERVAL 1 MINUTE")
def minutes(keyed):
    return keyed.groupBy(f.date_trunc("minute", "timestamp").alias("minute"), "id").agg(f.count("*").alias("n"))


@layer.table("other", backfill=False)
def other(records):
    return records.groupBy("topic").count()
"""


def project_of(folder: Path, *, closed_minutes: int) -> Project:
    project = written(folder)
    (folder / "definitions").mkdir()
    (folder / "definitions" / "flows.py").write_text(DEFINITIONS)
    spec = "name: shop\nstorage: file:///nowhere\nlibraries:\n  - glob:\n      include: definitions/**\n"
    (folder / "spark-pipeline.yml").write_text(spec)
    for flow in ("bronze", "once", "minutes"):
        checkpoint = project.flow(flow) / flow / "0"
        write_checkpoint(checkpoint, 0, {"orders": {"0": READ}})
        told = checkpoint / "offsets" / "0"
        at_ms = round((START + timedelta(minutes=closed_minutes)).timestamp() * 1000)
        told.write_text(told.read_text().replace('"batchWatermarkMs": 0', f'"batchWatermarkMs": {at_ms}'))
    return project


def rows_at_hand(spark: SparkSession) -> DataFrame:
    """Two in each minute; null is a key like others."""
    keys = [b"a", b"a", None, b"b", None, b"c", b"d"]
    rows = [
        ("orders", 0, offset, START + timedelta(seconds=30 * offset), key, b"%d" % offset, None)
        for offset, key in enumerate(keys)
    ]
    return spark.createDataFrame(rows, records.SCHEMA)


def fill(found: Backfill, log: DataFrame, first: int, last: int) -> dict[str, int]:
    added = {}
    for flow in found.flows:
        lacking, _ = found.lacking(flow, log.where(f.col("offset").between(first, last)), log)
        added[flow.name] = lacking.count()
        found.add(flow, lacking)
    return added


def test_each_row_is_added_once(spark: SparkSession, tmp_path: Path) -> None:
    project, log = project_of(tmp_path, closed_minutes=2), rows_at_hand(spark)
    found = Backfill(spark, project, Generation())
    assert [flow.name for flow in found.flows] == ["bronze", "once", "minutes"], "one is left out, as it says"
    # The range ends within the first minute: the minute is counted whole.
    assert fill(found, log, 0, 0) == {"bronze": 1, "once": 1, "minutes": 1}
    assert [(row.id, row.n) for row in rows_of(project, "minutes")] == [("a", 2)]
    # The range goes behind what the flows have read, and behind the minutes that they have closed.
    assert fill(found, log, 0, 99) == {"bronze": READ - 1, "once": 3, "minutes": 2}
    assert sorted(row.offset for row in rows_of(project, "bronze")) == list(range(READ))
    assert sorted(str(row.id) for row in rows_of(project, "once")) == ["None", "a", "b", "c"]
    counted = sorted((row.minute.minute, str(row.id), row.n) for row in rows_of(project, "minutes"))
    assert counted == [(0, "a", 2), (1, "None", 1), (1, "b", 1)]
    # Rows whose keys are there, null among them, are known again.
    assert fill(found, log, 0, 99) == {"bronze": 0, "once": 0, "minutes": 0}


def test_a_flow_that_has_not_run_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    project = project_of(tmp_path, closed_minutes=0)
    (project.checkpoint("once", 1) / "commits" / "0").unlink()
    with pytest.raises(BrokerError, match="once: the pipeline has not run yet"):
        Backfill(spark, project, Generation())


def summed(rows: DataFrame) -> DataFrame:
    return rows.groupBy("offset", "topic", "partition").count()


@pytest.mark.parametrize(
    ("make", "key", "said"),
    [
        (summed, (), r'a row of t aggregates several records: declare @layer.table\("t", key=\[…\], until="…"\)'),
        (summed, ("topic",), "a row of t aggregates several records"),
        (
            lambda rows: rows.select("value"),
            (),
            "rows of t carry neither the position of their record .topic, partition, offset",
        ),
        (lambda rows: rows.select("value"), ("key",), "identified by key, but have no column key: keep it"),
    ],
)
def test_rows_that_would_come_twice_or_in_parts_are_refused(
    spark: SparkSession, tmp_path: Path, make: Callable[[DataFrame], DataFrame], key: tuple[str, ...], said: str
) -> None:
    declared = Declared(written(tmp_path), Generation(), lambda *_: None, is_batch=True)
    declared.table("t", key=key)(make)
    empty = spark.createDataFrame([], records.SCHEMA)
    with pytest.raises(BrokerError, match=said):
        _key(declared.flows["t"], *declared.known_rows("t", empty))


def test_by_what_rows_are_known_again(spark: SparkSession, tmp_path: Path) -> None:
    declared = Declared(written(tmp_path), Generation(), lambda *_: None, is_batch=True)
    declared.table("place")(lambda rows: rows.withColumnsRenamed({name: f"_{name}" for name in records.PLACE}))
    declared.table("once")(lambda rows: declared.once(rows, "key", "offset"))
    declared.table("declared", key=["key"])(lambda rows: declared.once(rows, "offset"))
    empty = spark.createDataFrame([], records.SCHEMA)

    def key(flow: Flow) -> tuple[str, ...]:
        return _key(flow, *declared.known_rows(flow.name, empty))

    assert {name: key(flow) for name, flow in declared.flows.items()} == {
        "place": ("_topic", "_partition", "_offset"),
        "once": ("key", "offset"),
        "declared": ("key",),
    }
    with pytest.raises(BrokerError, match=r"key must be a list of columns, such as \['id'\]"):
        declared.table("a", key="id")
    with pytest.raises(BrokerError, match="until = 'now' needs key"):
        declared.table("a", until="now")
