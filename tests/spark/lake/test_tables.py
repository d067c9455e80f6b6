"""Both kinds of table, each on a real disk and read by programs that are not ours: Arrow, deltalake, pyiceberg."""

import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from braidlog.spark.lake import KINDS, compact, files, vacuum
from braidlog.spark.lake.contract import Table
from braidlog.spark.lake.errors import LakeError
from braidlog.spark.lake.iceberg import IcebergTable, local_catalog
from braidlog.spark.lake.schemas import SchemaError, table_schema
from braidlog.spark.lake.tables import open_table
from braidlog.spark.lake.writing import Form, write_files
from braidlog.spark.lake.written import Change, DataFile, SinkTakenError
from braidlog.tables.catalog import open_catalog

SINK = "a query: ü/1"
MOMENT = dt.datetime(2026, 11, 15, 9, 30, 0, 123456, tzinfo=dt.UTC)
ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "kind": kind,
        "day": dt.date(2026, 11, 14 + number % 2),
        "at": MOMENT + dt.timedelta(seconds=number) if number % 3 else None,
        "price": decimal.Decimal(number) / 100 if number % 4 else None,
        "raw": bytes([number % 256]) * 3,
        "tags": [{"name": "n", "at": MOMENT}, None] if number % 5 else [] if number % 2 else None,
        "counts": [("a", number), ("b", None)],
        "ratio": float("nan") if number % 7 == 0 else number / 3,
    }
    for number, kind in enumerate(["plain", "a/b=c d", "ü%#?", None] * 5)
]
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("kind", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "Europe/Rome")),
        ("price", pa.decimal128(12, 2)),
        ("raw", pa.binary()),
        pa.field(
            "tags",
            pa.list_(pa.struct([pa.field("name", pa.string(), nullable=False), ("at", pa.timestamp("us", "UTC"))])),
        ),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("ratio", pa.float64()),
    ]
)
BY = ("kind", "day")


class Lake:
    """A table and its foreign reader."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.path = str(path / "events")
        self.table: Table = open_table(kind, self.path)

    def again(self) -> Table:
        """As another process has it."""
        return open_table(self.kind, self.path)

    def write(self, rows: pa.Table, partition_by: tuple[str, ...] = (), **form: Any) -> tuple[DataFile, ...]:
        merge = form.pop("merge_schema", False)
        schema = table_schema(rows.schema)
        self.table.prepare(schema, partition_by, merge_schema=merge)
        made = Form(
            self.table.location,
            schema,
            partition_by,
            keeps_partition_columns=self.table.keeps_partition_columns,
            **form,
        )
        return tuple(write_files(rows.to_batches(), made))

    def add(self, rows: pa.Table, batch: int | None = None, partition_by: tuple[str, ...] = (), **change: Any) -> bool:
        merge = change.get("merge_schema", False)
        files = self.write(rows, partition_by, merge_schema=merge)
        sink = None if batch is None else SINK
        schema = table_schema(rows.schema)
        return self.table.commit(Change(files, schema, sink, batch, partition_by=partition_by, **change))

    def read(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = _READERS[self.kind](self.path).to_pylist()
        return rows

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.read())

    def data_files(self) -> list[Path]:
        return [path for path in Path(self.path).rglob("*.parquet") if "_delta_log" not in path.parts]


def _read_delta(path: str) -> pa.Table:
    return DeltaTable(path).to_pyarrow_table()


def _read_iceberg(path: str) -> pa.Table:
    table = open_catalog("default", local_catalog(path)).load_table("default.events")
    scanned = table.scan().to_arrow()
    if "tags" not in scanned.column_names:
        return scanned
    # Nested rows by Arrow: pyiceberg's own reader shows an empty list of structs where there is none (0.12).
    files = [pq.read_table(task.file.file_path, partitioning=None) for task in table.scan().plan_files()]
    found = pa.concat_tables(files, promote_options="default")
    assert found.num_rows == scanned.num_rows
    return found


_READERS: dict[str, Callable[[str], pa.Table]] = {
    "delta": _read_delta,
    "iceberg": _read_iceberg,
}


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


def numbers(*ids: int, **columns: Any) -> pa.Table:
    return pa.table(
        {"id": pa.array(ids, pa.int64()), **{name: pa.array([v] * len(ids)) for name, v in columns.items()}}
    )


def comparable(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted((repr(sorted(row.items())) for row in rows), key=str)


def test_every_type_comes_back(lake: Lake) -> None:
    rows = pa.Table.from_pylist(ROWS, SCHEMA)
    assert lake.add(rows, 0, BY)
    wanted = pa.Table.from_pylist(ROWS, table_schema(SCHEMA)).to_pylist()
    assert comparable(lake.read()) == comparable(wanted)


def test_a_batch_is_added_once_however_often_it_comes(lake: Lake) -> None:
    assert lake.add(numbers(1, 2), 0)
    assert lake.add(numbers(3), 1)
    before = len(lake.data_files())
    assert not lake.add(numbers(3), 1)
    assert not lake.add(numbers(1, 2), 0)
    assert lake.ids() == [1, 2, 3]
    assert len(lake.data_files()) == before, "what a replay wrote is removed"
    assert lake.add(numbers(4), 2)
    assert lake.add(numbers(4), None)
    assert lake.ids() == [1, 2, 3, 4, 4]


def test_of_two_that_commit_one_batch_one_does(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that was taken for dead comes back between our look at the table and our commit."""
    lake.add(numbers(0), 0)
    ours, theirs = lake.write(numbers(1)), lake.write(numbers(1))
    schema = table_schema(numbers(1).schema)
    zombie = lake.again()
    change = Change(theirs, schema, SINK, 1)
    real = type(lake.table)._add_files
    calls: list[int] = []

    def late(self: Any, loaded: Any, asked: Change) -> None:
        if not calls:
            calls.append(1)
            assert zombie.commit(change)
        real(self, loaded, asked)

    monkeypatch.setattr(type(lake.table), "_add_files", late)
    assert lake.table.commit(Change(ours, schema, SINK, 1)) is False
    assert lake.ids() == [0, 1]


def test_an_abort_after_the_commit_undoes_nothing(lake: Lake) -> None:
    files = lake.write(numbers(1, 2))
    lake.table.commit(Change(files, table_schema(numbers(1).schema), SINK, 0))
    lake.table.discard(files)
    assert lake.ids() == [1, 2]
    failed = lake.write(numbers(3))
    lake.table.discard(failed)
    assert lake.ids() == [1, 2]
    assert len(lake.data_files()) == 1


def test_overwriting_leaves_the_new_rows_alone(lake: Lake) -> None:
    lake.add(numbers(1, 2), 0)
    lake.add(numbers(3), 1)
    assert lake.add(numbers(9), None, overwrite=True)
    assert lake.ids() == [9]
    assert not lake.add(numbers(3), 1), "the table still knows whose batches it had"


def test_columns_are_added_only_if_one_says_so(lake: Lake) -> None:
    lake.add(numbers(1), 0)
    with pytest.raises(SchemaError, match="no column 'name'; option mergeSchema=true"):
        lake.add(numbers(2, name="b"), 1)
    assert lake.add(numbers(2, name="b"), 1, merge_schema=True)
    assert lake.add(numbers(3), 2), "rows may lack what may be null"
    with pytest.raises(SchemaError, match="'name' is string in the table and int64"):
        lake.add(numbers(4, name=4), 3, merge_schema=True)
    lake.table.compact(1 << 20)
    found = sorted((row["id"], row.get("name")) for row in lake.read())
    assert found == [(1, None), (2, "b"), (3, None)]


def test_compaction_keeps_rows_and_leaves_fewer_files(lake: Lake) -> None:
    for batch in range(6):
        lake.add(pa.Table.from_pylist(ROWS[batch::6], SCHEMA).drop(["day", "ratio"]), batch, ("kind",))
    before = comparable(lake.read())
    told = lake.again().compact(64 << 20)
    assert told.files_removed > told.files_added == 4, told
    assert told.bytes_removed > 0 < told.bytes_added
    assert comparable(lake.read()) == before
    again = lake.again().compact(64 << 20)
    assert (again.files_removed, again.files_added) == (0, 0), "what is large, or alone, is left alone"
    removed = lake.again().vacuum(0)
    assert len(removed) == told.files_removed
    assert comparable(lake.read()) == before
    assert len(lake.data_files()) == 4
    assert lake.table.commit(Change((), SCHEMA, SINK, 5, partition_by=("kind",))) is False, (
        "whose batches it had, it knows"
    )


def test_a_writer_goes_on_beside_a_compaction(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(4):
        lake.add(numbers(batch), batch)
    staged = lake.write(numbers(4))
    # What a compaction reads is fixed before this batch is committed, what it replaces after it.
    writer = lake.again()
    _in_the_middle(lake, monkeypatch, lambda: writer.commit(Change(staged, table_schema(numbers(4).schema), SINK, 4)))
    told = lake.table.compact(64 << 20)
    assert told.files_removed >= 4
    assert lake.ids() == [0, 1, 2, 3, 4]


def _in_the_middle(lake: Lake, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    if lake.kind == "delta":
        act()  # deltalake's compaction has no middle that can be reached; Delta's own rules are tested by its authors
        return
    real = IcebergTable._replace
    calls: list[int] = []

    def first(*arguments: Any) -> Any:
        if not calls:
            calls.append(1)
            act()
        return real(*arguments)

    monkeypatch.setattr(IcebergTable, "_replace", first)


def test_vacuum_removes_orphans_that_are_old_and_nothing_else(lake: Lake) -> None:
    lake.add(numbers(1), 0)
    lake.write(numbers(2))
    assert lake.table.vacuum(3600) == []
    assert len(lake.table.vacuum(0)) == 1
    assert lake.ids() == [1]


def test_many_partitions_in_few_open_files(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.spark.lake.writing.OPEN_FILES_MAX", 3)
    monkeypatch.setattr("braidlog.spark.lake.writing.ROW_GROUP_ROWS", 2)
    rows = pa.table({"id": pa.array(range(100), pa.int64()), "kind": pa.array([str(n % 10) for n in range(100)])})
    files = lake.write(pa.concat_tables([rows.slice(at, 20) for at in range(0, 100, 20)]), ("kind",))
    assert len(files) > 10, "one that was not written to for long made room for another"
    lake.table.commit(Change(files, table_schema(rows.schema), SINK, 0, partition_by=("kind",)))
    assert sorted((row["id"], row["kind"]) for row in lake.read()) == [(n, str(n % 10)) for n in range(100)]


def test_files_are_rolled_and_row_groups_are_large(tmp_path: Path) -> None:
    batches = [
        pa.record_batch({"id": pa.array(range(at, at + 10_000), pa.int64())}) for at in range(0, 600_000, 10_000)
    ]
    form = Form(str(tmp_path), batches[0].schema, target_file_bytes=1_000_000, compression="none")
    files = write_files(batches, form)
    assert sum(file.rows for file in files) == 600_000
    assert 1 < len(files) < 10
    assert all(file.bytes == (tmp_path / file.path).stat().st_size for file in files)
    groups = [pq.ParquetFile(tmp_path / file.path).metadata.row_group(0).num_rows for file in files]
    assert min(groups[:-1]) >= 128 * 1024, groups
    assert files[0].stats["minValues"] == {"id": 0}


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    good = pa.record_batch({"id": pa.array([1], pa.int64())})

    def batches() -> Any:
        yield good
        raise OSError("the upstream is gone")

    with pytest.raises(OSError, match="upstream"):
        write_files(batches(), Form(str(tmp_path), good.schema))
    assert list(tmp_path.rglob("*")) == []


def test_what_a_table_needs_is_said() -> None:
    for kind, path, name, said in (
        ("parquet", "/x", None, "table = parquet: .*use delta or iceberg, or .*Spark's own `write.parquet`"),
        ("orc", "/x", None, "table = orc: use delta or iceberg"),
        ("delta", None, None, "needs a path"),
        ("delta", "/x", "a.b", "has only a path"),
        ("iceberg", None, None, "needs a catalog"),
        ("delta", "gs://bucket/x", None, "disk that all machines share, or in an S3-compatible store"),
        ("iceberg", "s3://bucket/x", "a.b", "instead of a path"),
    ):
        with pytest.raises(LakeError, match=said):
            open_table(kind, path, name=name)


def test_an_iceberg_table_whose_columns_were_renamed_is_not_put_together_by_name(tmp_path: Path) -> None:
    lake = Lake("iceberg", tmp_path)
    lake.add(numbers(1, name="a"), 0)
    lake.add(numbers(2, name="b"), 1)
    table = open_catalog("default", local_catalog(lake.path)).load_table("default.events")
    with table.update_schema() as update:
        update.rename_column("name", "label")
    with pytest.raises(LakeError, match="'name' was renamed or dropped"):
        lake.table.compact(1 << 20)
    assert sorted((row["id"], row["label"]) for row in lake.read()) == [(1, "a"), (2, "b")]


def test_upkeep_tells_what_it_did(lake: Lake) -> None:
    assert files(lake.path, lake.kind) == []
    for upkeep in (compact, vacuum):
        with pytest.raises(LakeError, match="is no"):
            upkeep(lake.path, lake.kind)
    assert not Path(lake.path).exists(), "to ask is not to make"
    for batch in range(3):
        lake.add(numbers(batch), batch)
    lake.write(numbers(9))
    assert sorted(pq.read_table(path)["id"][0].as_py() for path in files(lake.path, lake.kind)) == [0, 1, 2]
    told = compact(lake.path, lake.kind, vacuum_age_seconds=0)
    assert (told.files_removed, told.files_added, len(told.vacuumed)) == (3, 1, 4), told
    assert lake.ids() == [0, 1, 2]
    assert len(lake.data_files()) == 1
    assert vacuum(lake.path, lake.kind, 0).vacuumed == ()


def test_a_new_checkpoint_under_an_old_name_is_refused(lake: Lake) -> None:
    assert lake.add(numbers(1), 0, run="first")
    assert lake.add(numbers(2), 1, run="first")
    assert not lake.add(numbers(2), 1, run="first")
    with pytest.raises(SinkTakenError, match="batches up to 1 of another query, and this is batch 0 of query second"):
        lake.add(numbers(3), 0, run="second")
    assert lake.ids() == [1, 2]


def test_an_iceberg_table_of_a_catalog_by_name(tmp_path: Path) -> None:
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/c.db",
        "warehouse": f"file://{tmp_path}/house",
        "name": "ours",
    }
    lake = Lake("iceberg", tmp_path)
    lake.table = open_table("iceberg", None, name="shop.events", catalog=catalog)
    assert lake.add(numbers(1, 2), 0)
    assert not lake.add(numbers(1, 2), 0)
    assert lake.add(numbers(3), 1)
    assert lake.table.compact(1 << 20).files_added == 1
    properties = {key: value for key, value in catalog.items() if key != "name"}
    table = open_catalog("ours", properties).load_table("shop.events")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
    assert len(table.snapshots()) == 3
    assert table.properties[f"braidlog.sink.{SINK}"] == "1"
