"""Tables as sources: one state as a batch, what is added later as a stream."""

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from braidlog.spark.lake import KINDS
from braidlog.spark.lake.errors import LakeError
from braidlog.spark.lake.iceberg import local_catalog
from braidlog.spark.lake.reading import LakeQuery, LakeReader, LakeStreamReader
from braidlog.spark.lake.schemas import table_schema
from braidlog.spark.lake.tables import open_table
from braidlog.spark.lake.upserting import upsert_rows
from braidlog.spark.lake.writing import Form, write_files
from braidlog.spark.lake.written import Change
from braidlog.tables.catalog import open_catalog

BY = ("kind", "day")


class Written:
    def __init__(self, kind: str, path: str) -> None:
        self.kind, self.path = kind, path

    def append(self, first: int, count: int, by: tuple[str, ...] = BY, **more: Any) -> None:
        rows = pa.table(
            {
                "id": list(range(first, first + count)),
                "kind": [("a/b=c d", "ü%#?", None)[n % 3] for n in range(count)],
                "day": [dt.date(2026, 11, 14 + n % 2) for n in range(count)],
                **{name: [value] * count for name, value in more.items()},
            }
        )
        table = open_table(self.kind, self.path)
        schema = table.prepare(table_schema(rows.schema), by, merge_schema=bool(more))
        form = Form(table.location, schema, by, keeps_partition_columns=table.keeps_partition_columns)
        files = tuple(write_files(rows.to_batches(), form))
        table.commit(Change(files, schema, merge_schema=bool(more), partition_by=by))

    def query(self, **options: str) -> LakeQuery:
        return LakeQuery({"path": self.path, "table": self.kind, **options})

    def rows(self, tasks: Iterable[InputPartition], reader: Any) -> list[dict[str, Any]]:
        return sorted(
            (row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()),
            key=lambda row: row["id"],
        )

    def batch(self, **options: str) -> list[dict[str, Any]]:
        query = self.query(**options)
        reader = LakeReader(query, query.schema())
        return self.rows(reader.partitions(), reader)


@pytest.fixture(params=KINDS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    return Written(request.param, str(tmp_path / "t"))


def test_a_batch_is_one_state_of_the_table(written: Written) -> None:
    written.append(0, 6)
    first = open_table(written.kind, written.path).state(None).version
    written.append(6, 6, city="Rome")
    found = written.batch(filesPerTask="1")
    assert [row["id"] for row in found] == list(range(12))
    assert [row["kind"] for row in found[:3]] == ["a/b=c d", "ü%#?", None]
    assert {row["day"] for row in found} == {dt.date(2026, 11, 14), dt.date(2026, 11, 15)}
    assert [row["city"] for row in found] == [None] * 6 + ["Rome"] * 6
    assert [row["id"] for row in written.batch(versionAsOf=str(first))] == list(range(6))
    assert list(written.batch()[0]) == ["id", "kind", "day", "city"]


def test_a_stream_is_the_state_it_began_with_and_what_is_added(written: Written) -> None:
    written.append(0, 6)
    query = written.query()
    reader = LakeStreamReader(query, query.schema())
    start, first = reader.initialOffset(), reader.latestOffset({}, ReadAllAvailable())
    assert [row["id"] for row in written.rows(reader.partitions(start, first), reader)] == list(range(6))
    written.append(6, 4)
    written.append(10, 2)
    open_table(written.kind, written.path).compact(2**30)
    second = reader.latestOffset({}, ReadAllAvailable())
    assert [row["id"] for row in written.rows(reader.partitions(first, second), reader)] == list(range(6, 12))
    assert [row["kind"] for row in written.rows(reader.partitions(first, second), reader)][:3] == [
        "a/b=c d",
        "ü%#?",
        None,
    ]
    assert list(reader.partitions(second, second)) == []


def test_a_stream_may_begin_before_the_first_row(written: Written) -> None:
    schema = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("day", pa.date32())])
    open_table(written.kind, written.path).prepare(schema, BY, merge_schema=False)
    query = written.query()
    reader = LakeStreamReader(query, query.schema())
    start, empty = reader.initialOffset(), reader.latestOffset({}, ReadAllAvailable())
    assert list(reader.partitions(start, empty)) == []
    assert written.batch() == []
    written.append(0, 3)
    end = reader.latestOffset(empty, ReadAllAvailable())
    assert [row["id"] for row in written.rows(reader.partitions(empty, end), reader)] == [0, 1, 2]


def test_rows_that_change_are_refused_by_a_stream_and_read_by_a_batch(written: Written) -> None:
    written.append(0, 2, by=())
    query = written.query()
    reader = LakeStreamReader(query, query.schema())
    first = reader.latestOffset({}, ReadAllAvailable())
    table = open_table(written.kind, written.path)
    upsert_rows(table, pa.table({"id": [1], "kind": ["new"], "day": [dt.date(2026, 1, 1)]}), ["id"], "s", 0)
    with pytest.raises(LakeError, match="changed or deleted rows, but a stream reads added rows only"):
        reader.partitions(first, reader.latestOffset({}, ReadAllAvailable()))
    assert [row["kind"] for row in written.batch()] == ["a/b=c d", "new"]


def test_a_table_that_would_be_read_wrong_is_refused_by_name(tmp_path: Path) -> None:
    DeltaTable.create(
        str(tmp_path / "t"),
        pa.schema([("id", pa.int64())]),
        configuration={"delta.enableDeletionVectors": "true"},
    )
    with pytest.raises(LakeError, match="deletionVectors"):
        Written("delta", str(tmp_path / "t")).batch()


def test_rows_that_others_have_deleted_are_not_read(written: Written) -> None:
    """Deleted by deltalake and pyiceberg, which write the files anew."""
    written.append(0, 4, by=())
    if written.kind == "delta":
        DeltaTable(written.path).delete("id = 2")
    else:
        _iceberg(written.path).delete("id == 2")
    assert [row["id"] for row in written.batch()] == [0, 1, 3]


def test_an_iceberg_table_with_files_of_deletes_is_refused_by_name(tmp_path: Path) -> None:
    """As Spark and Flink write them where a table is merged on read: rows of a file, by their positions in it."""
    written = Written("iceberg", str(tmp_path / "t"))
    written.append(0, 4, by=())
    table = _iceberg(written.path)
    (task,) = table.scan().plan_files()
    path = f"{written.path}/deletes.parquet"
    pq.write_table(pa.table({"file_path": [task.file.file_path], "pos": pa.array([2], pa.int64())}), path)
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=Path(path).stat().st_size,
        spec_id=table.spec().spec_id,
    )
    with table.transaction() as change, change.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(deletes)
    assert sorted(_iceberg(written.path).scan().to_arrow()["id"].to_pylist()) == [0, 1, 3], "pyiceberg honours them"
    with pytest.raises(LakeError, match=r"delete files apply to rows of .*; use pyiceberg"):
        written.batch()


def _iceberg(path: str) -> Table:
    return open_catalog("default", local_catalog(path)).load_table("default.t")


def test_spark_reads_what_it_wrote(spark: SparkSession, tmp_path: Path) -> None:
    """In its own types: a batch, and a stream over two runs of one checkpoint."""
    rows = spark.range(4).selectExpr(
        "id", "timestamp_millis(id) AS at", "array(struct(id AS x)) AS deep", "id % 2 AS kind"
    )
    options = {"table": "delta", "path": str(tmp_path / "t")}

    def streamed() -> None:
        stream = spark.readStream.format("braidlog-lake").options(**options).load().writeStream.format("parquet")
        query = stream.option("checkpointLocation", str(tmp_path / "at")).trigger(availableNow=True)
        query.start(str(tmp_path / "out")).awaitTermination()

    for _ in range(2):
        rows.write.format("braidlog-lake").options(**options, partitionBy="kind").mode("append").save()
        streamed()
    found = spark.read.format("braidlog-lake").options(**options).load()
    assert found.select(rows.columns).schema.simpleString() == rows.schema.simpleString()
    wanted = sorted(rows.collect() * 2)
    assert sorted(found.select(rows.columns).collect()) == wanted
    assert sorted(spark.read.parquet(str(tmp_path / "out")).select(rows.columns).collect()) == wanted
