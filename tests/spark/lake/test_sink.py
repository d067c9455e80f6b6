"""`format("braidlog-lake")` in a real Spark: what comes back, and what is there after whatever broke in the middle."""

import contextlib
import datetime as dt
import decimal
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.spark.lake import fatal
from tests.spark.lake.fatal import FATAL_BATCH

from braidlog.spark import topic
from braidlog.spark.lake import KINDS
from braidlog.spark.lake.iceberg import local_catalog
from braidlog.spark.lake.tables import open_table
from braidlog.tables.catalog import open_catalog
from braidlog.testing.server import ServerProcess

SCHEMA = """id bigint, name string, at timestamp, local timestamp_ntz, day date, price decimal(12,2), raw binary, small smallint,
            deep array<struct<label: string, at: timestamp, more: map<string, int>>>, ok boolean, ratio double"""
MOMENT = dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=dt.UTC)
ROWS = [
    (
        number,
        f"name {number % 5}" if number % 3 else None,
        MOMENT + dt.timedelta(hours=number),
        dt.datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001 - it has none: in some zones there was no such hour
        dt.date(2026, 3, 28 + number % 2),
        decimal.Decimal(number) / 4 if number % 2 else None,
        bytes(range(number)),
        number,
        [("x", MOMENT, {"a": 1, "b": None}), None] if number % 4 else None,
        number % 2 == 0,
        number / 7,
    )
    for number in range(12)
]
KILL_SECONDS_MAX = 480


def read_foreign(kind: str, path: str) -> pa.Table:
    if kind == "delta":
        return DeltaTable(path).to_pyarrow_table()
    table = open_catalog("default", local_catalog(path)).load_table(f"default.{Path(path).name}")
    # Its files by Arrow: pyiceberg's own reader shows an empty list of structs where there is none (0.12).
    files = [pq.read_table(task.file.file_path, partitioning=None) for task in table.scan().plan_files()]
    return pa.concat_tables(files)


def ids(kind: str, path: Path) -> list[int]:
    return sorted(read_foreign(kind, str(path)).column("id").to_pylist())


@contextlib.contextmanager
def time_zone(spark: SparkSession, name: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", name)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_comes_back_as_it_was(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    rows = spark.createDataFrame(ROWS, SCHEMA).repartition(2)
    path = tmp_path / "events"
    with time_zone(spark, "America/Sao_Paulo"):
        writer = rows.write.format("braidlog-lake").options(table=kind, partitionBy="day,name").mode("append")
        writer.save(str(path))
    found = spark.createDataFrame(read_foreign(kind, str(path)), SCHEMA)
    names = rows.columns
    wanted = sorted((row.asDict(recursive=True) for row in rows.collect()), key=lambda row: int(row["id"]))
    shown = sorted(
        (row.asDict(recursive=True) for row in found.select(names).collect()), key=lambda row: int(row["id"])
    )
    assert shown == wanted
    overwriting = spark.createDataFrame(ROWS[:3], SCHEMA).write.format("braidlog-lake").mode("overwrite")
    overwriting.options(table=kind, partitionBy="day,name").save(str(path))
    assert ids(kind, path) == [0, 1, 2]


def test_a_batch_with_a_number_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(1,), (2,)], "id bigint")
    for number in (0, 0, 1, 0):
        writer = rows.write.format("braidlog-lake").options(table="delta", sinkId="nightly", batchId=str(number))
        writer.mode("append").save(str(tmp_path / "t"))
    assert ids("delta", tmp_path / "t") == [1, 1, 2, 2]


def test_what_cannot_be_done_is_said(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(1, "a")], "id bigint, name string")

    def refused(frame: Any, **options: str) -> str:
        with pytest.raises(PySparkException) as caught:
            frame.write.format("braidlog-lake").options(**options).mode("append").save(str(tmp_path / "t"))
        return str(caught.value)

    assert "option table: it must be set: delta or iceberg" in refused(rows)
    assert "did you mean partitionBy?" in refused(rows, table="delta", partitonBy="id")
    assert "use delta or iceberg, or Spark's own `write.parquet`" in refused(rows, table="parquet")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "somebody-elses").touch()
    assert "create the table in an empty folder" in refused(rows, table="delta")
    (tmp_path / "t" / "somebody-elses").unlink()
    rows.select("id").write.format("braidlog-lake").options(table="delta").mode("append").save(str(tmp_path / "t"))
    assert "the table has no column 'name'; option mergeSchema=true" in refused(rows, table="delta")
    rows.write.format("braidlog-lake").options(table="delta", mergeSchema="true").mode("append").save(
        str(tmp_path / "t")
    )
    found = read_foreign("delta", str(tmp_path / "t")).to_pylist()
    assert {(row["id"], row["name"]) for row in found} == {(1, None), (1, "a")}


def test_what_a_stream_can_ask_for(spark: SparkSession, tmp_path: Path) -> None:
    """`complete` replaces a table; topics and keys say what does it for them. Spark refuses `update`, and asks no sink."""
    fatal.write_input(tmp_path, files=2, rows=6)
    rows = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).json(str(tmp_path / "input"))
    counts = rows.groupBy((f.col("id") % 2).alias("id")).count()
    texts = counts.selectExpr("string(id) AS key", "string(count) AS value")
    place = {"table": "delta", "path": str(tmp_path / "t")}

    def run(frame: DataFrame, form: str, mode: str, **options: str) -> None:
        writer = frame.writeStream.format(form).options(**options).outputMode(mode)
        checkpoint = tmp_path / f"{form}-{mode}-at"
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="braidlog-lake does not support Update mode"):
        run(counts, "braidlog-lake", "update", **place)
    assert not (tmp_path / "t").exists()
    run(counts, "braidlog-lake", "complete", **place)
    held = read_foreign("delta", str(tmp_path / "t")).to_pylist()
    assert sorted((row["id"], row["count"]) for row in held) == [(0, 6), (1, 6)], "the second batch is all there is"
    for form, way in (("braidlog", "topic"), ("braidlog-kv", "kv")):
        with pytest.raises(StreamingQueryException, match=rf"for update and complete, .*upsert\.{way}"):
            run(texts, form, "complete", servers="127.0.0.1:1", **({"topic": "t"} if way == "topic" else {}))
    # Spark does not hand on `writeStream.partitionBy`: the option is the way.
    run(
        rows.withColumn("odd", f.col("id") % 2),
        "braidlog-lake",
        "append",
        **{**place, "path": f"{tmp_path}/p"},
        partitionBy="odd",
    )
    assert {each.name for each in (tmp_path / "p").glob("odd=*")} == {"odd=0", "odd=1"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_replayed_batch_changes_nothing(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    spark.dataSource.register(fatal.FatalSink)
    fatal.write_input(tmp_path, files=3, rows=20)
    # The first commit succeeds and its answer is lost: Spark aborts the batch, and replays it when the query is started again.
    with pytest.raises(StreamingQueryException, match="connection to the driver is lost"):
        fatal.start(spark, tmp_path, kind, moment="refused", marker=str(tmp_path / "marker")).awaitTermination()
    assert (tmp_path / "marker").read_text(encoding="ascii") == "aborted"
    assert ids(kind, tmp_path / kind / "table") == list(range(20)), "an abort after the commit undoes nothing"
    # A task's process dies after it has written its file.
    with pytest.raises(StreamingQueryException):
        fatal.start(spark, tmp_path, kind, moment="task", marker=str(tmp_path / "killed")).awaitTermination()
    assert (tmp_path / "killed").exists()
    fatal.start(spark, tmp_path, kind).awaitTermination()
    assert ids(kind, tmp_path / kind / "table") == list(range(60))
    # Spark forgets that it had finished the last batch.
    (tmp_path / kind / "checkpoint" / "commits" / "2").unlink()
    (tmp_path / kind / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
    fatal.start(spark, tmp_path, kind).awaitTermination()
    assert ids(kind, tmp_path / kind / "table") == list(range(60))


def test_a_killed_driver_leaves_nothing_twice_and_nothing_out(
    spark: SparkSession, tmp_path: Path, braid_server_shared: ServerProcess
) -> None:
    cases = ["delta-before", "delta-after", "iceberg-after"]
    upserts = ["upsert.delta-before", "upsert.delta-after", "upsert.iceberg-after", "upsert.topic-after"]
    servers = f"127.0.0.1:{braid_server_shared.ports['kafka']}"
    fatal.write_input(tmp_path, files=3, rows=20)
    kill_drivers(tmp_path, servers, cases + upserts)
    for case in upserts:
        check_upserts(spark, tmp_path, case, servers)
    for case in cases:
        kind, _, moment = case.partition("-")
        table = tmp_path / case / "table"
        assert ids(kind, table) == list(range(40 if moment == "after" else 20)), case
        fatal.start(spark, tmp_path, case).awaitTermination()
        assert ids(kind, table) == list(range(60)), case
        orphans = open_table(kind, str(table)).vacuum(0)
        assert len(orphans) == (2 if moment == "before" else 0), f"{case}: {orphans}"
        assert ids(kind, table) == list(range(60)), case


def check_upserts(spark: SparkSession, folder: Path, case: str, servers: str) -> None:
    """Every batch has the same twenty keys: the table has the rows of the last one that counts, and a topic every row once."""
    kind, _, moment = case.removeprefix(fatal.UPSERT).partition("-")

    def found() -> list[int]:
        if kind != "topic":
            return ids(kind, folder / case / "table")
        rows = topic(spark, "upserted", servers, valueFormat="json", valueSchema="id BIGINT").frame()
        return sorted(row.id for row in rows.select("value.id").collect())

    done = FATAL_BATCH if moment == "before" else FATAL_BATCH + 1
    first = 0 if kind == "topic" else 20 * (done - 1)
    assert found() == list(range(first, 20 * done)), case
    fatal.start(spark, folder, case, servers=servers).awaitTermination()
    wanted = list(range(0 if kind == "topic" else 40, 60))
    assert found() == wanted, case
    # Spark forgets that it had finished the last batch.
    (folder / case / "checkpoint" / "commits" / "2").unlink()
    (folder / case / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
    fatal.start(spark, folder, case, servers=servers).awaitTermination()
    assert found() == wanted, case


def kill_drivers(folder: Path, servers: str, cases: list[str]) -> None:
    """Run queries until each waits at its moment; then kill -9: Python, Java and the workers."""
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.lake.fatal", str(folder), servers, *cases],
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    markers = [folder / f"{case}.marker" for case in cases]
    try:
        deadline = time.monotonic() + KILL_SECONDS_MAX
        while not all(marker.exists() for marker in markers):
            missing = [marker.name for marker in markers if not marker.exists()]
            assert process.poll() is None, f"the driver ended by itself, before {missing}"
            assert time.monotonic() < deadline, f"{missing} did not reach their moment"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for marker in filter(Path.exists, markers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(marker.read_text(encoding="ascii")), signal.SIGKILL)
