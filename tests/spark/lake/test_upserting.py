"""Rows into tables by key, without Spark: what is there in the end, whoever asks how often."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from braidlog.spark.lake import KINDS
from braidlog.spark.lake.contract import Loaded, Table
from braidlog.spark.lake.errors import LakeError
from braidlog.spark.lake.schemas import SchemaError
from braidlog.spark.lake.tables import open_table
from braidlog.spark.lake.upserting import upsert_rows

SINK = "a query"


def rows(*pairs: tuple[Any, Any], **more: Any) -> pa.Table:
    found = pa.table({"user": [user for user, _ in pairs], "n": pa.array([n for _, n in pairs], pa.int64())})
    for name, value in more.items():
        found = found.append_column(name, pa.array([value] * len(found)))
    return found


class Upserted:
    def __init__(self, kind: str, path: str) -> None:
        self.kind, self.path = kind, path

    def table(self) -> Table:
        """As another process has it."""
        return open_table(self.kind, self.path)

    def put(self, found: pa.Table, batch: int, **more: Any) -> bool:
        return upsert_rows(self.table(), found, ["user"], SINK, batch, **more)

    def held(self) -> list[tuple[Any, ...]]:
        names = ["user", "n"]
        found = [pq.read_table(path, columns=names, partitioning=None) for path in self.table().paths()]
        return sorted(tuple(row[name] for name in names) for row in pa.concat_tables(found).to_pylist())


@pytest.fixture(params=KINDS)
def upserted(request: pytest.FixtureRequest, tmp_path: Path) -> Upserted:
    return Upserted(request.param, str(tmp_path / "t"))


def test_the_last_row_of_each_key_and_each_batch_once(upserted: Upserted) -> None:
    assert upserted.put(rows(("a", 1), ("b", 1)), 0)
    assert upserted.put(rows(("b", 2), ("c", 2)), 1)
    assert upserted.held() == [("a", 1), ("b", 2), ("c", 2)]
    for batch in (1, 0):
        assert not upserted.put(rows(("a", 99), ("d", 99)), batch), "a batch that Spark does again"
    assert not upserted.put(rows(), 2), "nothing to do"
    assert upserted.held() == [("a", 1), ("b", 2), ("c", 2)]


def test_of_two_drivers_with_one_batch_one_counts(upserted: Upserted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second commits while the first has looked at the table and not yet written: the first decides anew."""
    upserted.put(rows(("a", 0)), 0)
    mine = upserted.table()
    inner = mine._upsert
    raced: list[int] = []

    def late(table: Loaded, *others: Any) -> None:
        if not raced:
            raced.append(1)
            assert upserted.put(rows(("a", 1)), 1)
        inner(table, *others)

    monkeypatch.setattr(mine, "_upsert", late)
    assert not upsert_rows(mine, rows(("a", 2)), ["user"], SINK, 1)
    assert raced
    assert upserted.held() == [("a", 1)]


def test_what_has_no_one_outcome_is_refused(upserted: Upserted) -> None:
    with pytest.raises(LakeError, match=r"a key \(user\) occurs more than once in the batch: .*order=COLUMN"):
        upserted.put(rows(("a", 1), ("a", 2)), 0)
    with pytest.raises(LakeError, match="key column 'user' is null"):
        upserted.put(rows((None, 1), ("a", 2)), 0)
    upserted.put(rows(("a", 1)), 0)
    with pytest.raises(SchemaError, match="no column 'city'"):
        upserted.put(rows(("a", 2), city="Rome"), 1)
    assert upserted.put(rows(("b", 2), city="Rome"), 1, merge_schema=True)
    assert upserted.held() == [("a", 1), ("b", 2)]


def test_a_row_that_is_replaced_may_have_more_columns(upserted: Upserted) -> None:
    upserted.put(rows(("a", 1), ("b", 1)), 0)
    assert upserted.put(rows(("b", 2), ("c", 2), city="Rome"), 1, merge_schema=True)
    assert not upserted.put(rows(("b", 9), city="Oslo"), 1, merge_schema=True), "a batch that Spark does again"
    assert upserted.put(rows(("a", 3), city="Bern"), 2, merge_schema=True)
    assert upserted.held() == [("a", 3), ("b", 2), ("c", 2)]
    cities = [pq.read_table(path, columns=["user", "city"], partitioning=None) for path in upserted.table().paths()]
    assert {(row["user"], row["city"]) for row in pa.concat_tables(cities).to_pylist()} == {
        ("a", "Bern"),
        ("b", "Rome"),
        ("c", "Rome"),
    }


def test_files_are_synced_before_the_batch_counts_for_spark(
    upserted: Upserted, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = upserted.table()
    synced: list[str] = []
    inner = table._sync_file

    def sync(path: str) -> None:
        synced.append(path)
        inner(path)

    monkeypatch.setattr(table, "_sync_file", sync)
    upsert_rows(table, rows(("a", 1)), ["user"], SINK, 0)
    assert set(table.paths()) <= set(synced)
