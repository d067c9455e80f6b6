"""Topics that are tables, on a real node: rows are the topic's records whatever happens to the node."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import SQLAlchemyError
from tests.cli.braid import Braid
from tests.console import waiting
from tests.tables.object_store import BUCKET, SILENT, object_store

import braidlog
from braidlog import NewRecord
from braidlog.client.blocking import Client
from braidlog.client.errors import RefusedError
from braidlog.tables.catalog import open_catalog
from braidlog.testing.server import ServerProcess

T = TypeVar("T")
SETTINGS = {"braidlog.table": "json", "segment.bytes": "20000", "braidlog.table.lag.ms": "500"}
SECONDS_MAX = 900
STATUS = "table-status"
NOW_MS = 1_700_000_000_000
HUNG = ("hung-one", "hung-two")
QUICK = ("--set", "tables.check_seconds=0.05")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("tables") / "data", *QUICK, admin=True) as server:
        yield server


def until(look: Callable[[], T | None]) -> T:
    return waiting.until(look, SECONDS_MAX)


def client_of(node: ServerProcess) -> Client:
    return braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}")


def produce(node: ServerProcess, topic: str, numbers: range) -> None:
    with client_of(node) as client:
        records = [NewRecord(json.dumps({"n": n, "text": "x" * 50}).encode()) for n in numbers]
        for delivery in client.producer().send_many(topic, records, partition=0):
            delivery.result(60)


def numbers_of(node: ServerProcess, topic: str, catalog: dict[str, str] | None = None) -> list[int]:
    """Column `n` of the table, as pyiceberg reads it."""
    properties = catalog or {"type": "sql", "uri": f"sqlite:///{node.data_dir}/tables/catalog.db"}
    try:
        rows = open_catalog("braidlog", properties).load_table(("topics", topic)).scan().to_arrow()
    except (NoSuchTableError, SQLAlchemyError):
        return []
    return sorted(rows["n"].to_pylist()) if "n" in rows.column_names else []


def told(node: ServerProcess, topic: str) -> dict[str, str | None]:
    with client_of(node) as client:
        return {each.name: each.value for each in client.admin.topic_settings(topic)}


def test_a_topic_is_a_table_also_after_kills(node: ServerProcess) -> None:
    with client_of(node) as client:
        client.admin.create_topic("orders", settings=SETTINGS)
    for round_ in range(3):
        produce(node, "orders", range(round_ * 500, round_ * 500 + 500))
        if round_ < 2:
            node.kill()  # at whatever point of a turn it is, its worker with it
            node.restart()
    assert until(lambda: found if len(found := numbers_of(node, "orders")) >= 1500 else None) == list(range(1500))
    state = until(lambda: found if (found := told(node, "orders")).get("braidlog.table.lag") == "0" else None)
    assert (state["braidlog.table"], state["braidlog.table.rows"]) == ("json", "1500")
    assert (state["braidlog.table.metadata"] or "").endswith(".metadata.json")
    (row,) = Braid(node).json("table", "status", "orders", schema=STATUS)
    assert (row["topic"], row["form"], row["rows"], row["lag_records"], row["lag_bytes"]) == (
        "orders",
        "json",
        1500,
        0,
        0,
    )
    assert (row["error"], row["bytes"] > 0, row["committed_ms"] > NOW_MS) == (None, True, True)
    lines = [line.split() for line in Braid(node).ok("table", "status").splitlines()]
    assert ["orders", "json", "0", "0", "B", "1500"] in [line[:6] for line in lines]


def test_values_with_schemas_are_columns_also_after_a_kill(node: ServerProcess) -> None:
    """Confluent's serializer registers and writes; the node hands the schemas to who makes rows."""
    with client_of(node) as client:
        client.admin.create_topic("typed", settings={**SETTINGS, "braidlog.table": "avro"})
    fields = [{"name": "n", "type": "int"}]
    for round_, more in enumerate(([], [{"name": "note", "type": ["null", "string"], "default": None}])):
        schema = json.dumps({"type": "record", "name": "O", "fields": fields + more})
        numbers = range(round_ * 300, round_ * 300 + 300)
        with SchemaRegistryClient({"url": node.registry_url}) as registry:
            serialize = AvroSerializer(registry, schema)
            context = SerializationContext("typed", MessageField.VALUE)
            values = [serialize({"n": n, **({"note": f"no. {n}"} if more else {})}, context) for n in numbers]
        with client_of(node) as client:
            for delivery in client.producer().send_many("typed", [*map(NewRecord, values), b"odd"], partition=0):
                delivery.result(60)
        if not more:
            node.kill()
            node.restart()
    status = ("table", "status", "typed")
    (row,) = until(lambda: found if (found := Braid(node).json(*status, schema=STATUS))[0]["rows"] >= 602 else None)
    assert (row["form"], row["rows"], row["undecoded"], row["error"]) == ("avro", 602, 2, None)
    catalog = open_catalog("braidlog", {"type": "sql", "uri": f"sqlite:///{node.data_dir}/tables/catalog.db"})
    rows = catalog.load_table(("topics", "typed")).scan().to_arrow().sort_by("offset")
    assert rows["n"].drop_null().to_pylist() == list(range(600))
    assert rows["note"].drop_null().to_pylist() == [f"no. {n}" for n in range(300, 600)]
    assert "typed: 2 rows are not valid avro" in Braid(node).ok("table", "status")


def test_a_table_is_asked_for_and_left_again_at_any_time(node: ServerProcess) -> None:
    with client_of(node) as client:
        client.admin.create_topic("late", settings={"segment.bytes": "20000"})
        produce(node, "late", range(100))
        assert "braidlog.table.lag" not in told(node, "late")
        client.admin.alter_topic("late", SETTINGS)
        assert until(lambda: found if len(found := numbers_of(node, "late")) >= 100 else None) == list(range(100))
        with pytest.raises(RefusedError, match=r"braidlog\.table.*protobuf"):
            client.admin.alter_topic("late", {"braidlog.table": "xml"})
        client.admin.alter_topic("late", {"braidlog.table": "off"})
        until(lambda: "braidlog.table.lag" not in told(node, "late") or None)


def test_a_topic_that_is_deleted_leaves_its_table(node: ServerProcess) -> None:
    with client_of(node) as client:
        client.admin.create_topic("short", settings=SETTINGS)
        produce(node, "short", range(200))
        client.admin.delete_topic("short")
        client.admin.create_topic("short", settings=SETTINGS)
    produce(node, "short", range(7000, 7200))
    assert until(lambda: found if 7199 in (found := numbers_of(node, "short")) else None) == list(range(7000, 7200))


def test_a_warehouse_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with ServerProcess(tmp_path / "data", *QUICK, "--set", f"tables.warehouse={tmp_path}/file/w") as node:
        with client_of(node) as client:
            client.admin.create_topic("orders", settings=SETTINGS)
        error = until(lambda: told(node, "orders").get("braidlog.table.error"))
        assert "cannot write the table of topic 'orders': FileExistsError" in (error or "")
        produce(node, "orders", range(10))
        (row,) = until(
            lambda: (
                found if (found := Braid(node).json("table", "status", schema=STATUS))[0]["lag_records"] == 10 else None
            )
        )
        assert (row["committed_ms"], row["metadata"], row["error"]) == (None, None, error)
        assert row["lag_bytes"] > 500
        assert f"orders: {error}" in Braid(node).ok("table", "status")


def test_a_table_that_cannot_be_read_is_told_and_keeps_no_other(node: ServerProcess) -> None:
    """Its newest metadata is something else for a while: the worker goes on, and so does the topic when that is mended."""
    with client_of(node) as client:
        client.admin.create_topic("odd", settings=SETTINGS)
        right = until(lambda: told(node, "odd").get("braidlog.table.metadata"))
        Path(node.data_dir, "odd.json").write_text("{}")
        point_to(node, "odd", f"file://{node.data_dir}/odd.json")
        produce(node, "odd", range(300))
        assert "cannot write the table of topic 'odd': Validation" in until(
            lambda: told(node, "odd").get("braidlog.table.error")
        )
        client.admin.create_topic("goes-on", settings=SETTINGS)
    produce(node, "goes-on", range(300))
    assert until(lambda: found if len(found := numbers_of(node, "goes-on")) >= 300 else None) == list(range(300))
    point_to(node, "odd", right)
    assert until(lambda: found if len(found := numbers_of(node, "odd")) >= 300 else None) == list(range(300))


def test_tables_whose_store_never_answers_keep_no_other(tmp_path: Path) -> None:
    """Two of them take all the processes that there are, and one gives way."""
    settings = tmp_path / "node.toml"
    with object_store() as store:
        told_catalog = store.told(tmp_path / "catalog.db")
        catalog = ", ".join(f'"{name}" = "{value}"' for name, value in told_catalog.items())
        settings.write_text(f'[tables]\nwarehouse = "s3://{BUCKET}"\ncatalog = {{ {catalog} }}\n')
        words = (*QUICK, "--set", "tables.yield_seconds=1", "--config", str(settings))
        with ServerProcess(tmp_path / "data", *words) as node:
            with client_of(node) as client:
                store.fail_from(0, SILENT, about="/hung-")
                for topic in HUNG:
                    client.admin.create_topic(topic, settings=SETTINGS)
                until(lambda: all(any(f"/{topic}-" in path for path in store.failed_paths) for topic in HUNG))
                client.admin.create_topic("goes-on", settings=SETTINGS)
            for topic in (*HUNG, "goes-on"):
                produce(node, topic, range(100))
            until(lambda: numbers_of(node, "goes-on", told_catalog) == list(range(100)))
            assert not any("braidlog.table.metadata" in told(node, topic) for topic in HUNG), "they hang all the time"
            errors = [told(node, topic).get("braidlog.table.error") or "" for topic in HUNG]
            assert any("and others wait" in error for error in errors)
            store.mend()
            until(lambda: all(numbers_of(node, topic, told_catalog) == list(range(100)) for topic in HUNG))


def point_to(node: ServerProcess, topic: str, metadata: str) -> None:
    tables = sqlite3.connect(f"{node.data_dir}/tables/catalog.db", timeout=SECONDS_MAX)
    with tables:
        tables.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?", (metadata, topic))
    tables.close()


def test_a_node_without_tables_imports_nothing_for_them() -> None:
    code = "import sys, braidlog.server.node as _; print([m for m in ('pyarrow', 'pyiceberg') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
