"""Catalogs that are files of SQLite: nothing keeps them open, and processes that share one wait for each other."""

import gc
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import TableAlreadyExistsError
from sqlalchemy.exc import OperationalError

from braidlog.tables import catalog as catalogs
from braidlog.tables.catalog import open_catalog

COLUMNS = pa.schema([("a", pa.int64())])


def told(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder)}


def handles(folder: Path) -> list[str]:
    found = []
    for each in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{each}"))
        except FileNotFoundError:  # that of the listing itself
            continue
    return [path for path in found if path.startswith(f"{folder}/catalog.db")]


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_no_connection_stays_open(tmp_path: Path) -> None:
    opened = [open_catalog("ours", told(tmp_path)) for _ in range(2)]
    for catalog in opened:
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table_if_not_exists("shop.events", COLUMNS).append(pa.table({"a": [1]}))
        with pytest.raises(TableAlreadyExistsError):
            catalog.create_table("shop.events", COLUMNS)
        assert handles(tmp_path) == []
    assert opened[0].load_table("shop.events").scan().to_arrow().num_rows == 2


def test_who_is_second_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_catalog("ours", told(tmp_path)).create_namespace("shop")
    other = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    with monkeypatch.context() as patched:
        patched.setattr(catalogs, "LOCK_SECONDS", 0)
        with pytest.raises(OperationalError, match="locked"):
            open_catalog("ours", told(tmp_path))
    release = threading.Timer(0.1, lambda: other.execute("COMMIT"))
    release.start()
    open_catalog("ours", told(tmp_path)).create_table("shop.events", COLUMNS)
    release.join()
    other.close()


def test_of_two_that_make_the_tables_both_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look whether there are any and their making, another makes them."""

    def late(own: SqlCatalog) -> None:
        monkeypatch.undo()
        open_catalog("ours", told(tmp_path)).create_namespace("shop")
        SqlCatalogBaseTable.metadata.create_all(own.engine, checkfirst=False)

    monkeypatch.setattr(SqlCatalog, "create_tables", late)
    assert open_catalog("ours", told(tmp_path)).list_namespaces() == [("shop",)]
