"""`braid schema` against the registry of a real node."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.braid import Braid

from braidlog.testing.server import ServerProcess

ORDER = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
OTHER = '{"type":"record","name":"Order","fields":[{"name":"name","type":"string"}]}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("schemas") / "data", admin=True) as server:
        yield server


@pytest.fixture
def braid(server: ServerProcess) -> Braid:
    made = Braid(server)
    made.environment["BRAID_REGISTRY_URL"] = server.registry_url
    return made


def test_a_schema_from_file_to_file_and_away(braid: Braid, tmp_path: Path) -> None:
    file, other, proto = tmp_path / "order.avsc", tmp_path / "other.avsc", tmp_path / "m.proto"
    file.write_text(ORDER)
    other.write_text(OTHER)
    proto.write_text('syntax = "proto3"; import "o"; message M { A a = 1; }')
    assert "No schemas" in braid.ok("schema", "list")
    assert braid.ok("schema", "register", "orders-value", str(file)) == "registered in orders-value: id=1\n"
    assert braid.ok("schema", "get", "orders-value") == f"{ORDER}\n"
    assert braid.ok("schema", "check", "orders-value", str(file)) == f"{file} is compatible with orders-value\n"
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in braid.fails(1, "schema", "check", "orders-value", str(other))
    assert "incompatible" in braid.fails(3, "schema", "register", "orders-value", str(other))
    (tmp_path / "a.proto").write_text('syntax = "proto3"; message A { int32 i = 1; }')
    braid.ok("schema", "register", "a", str(tmp_path / "a.proto"))
    braid.ok("schema", "register", "m-value", str(proto), "--reference", "o=a:1")
    rows = braid.json("schema", "list", schema="schema-list")
    assert [(row["subject"], row["type"]) for row in rows] == [
        ("a", "PROTOBUF"),
        ("m-value", "PROTOBUF"),
        ("orders-value", "AVRO"),
    ]
    told = braid.json("schema", "get", "m-value", schema="schema-get")
    assert told["references"] == [{"name": "o", "subject": "a", "version": 1}]
    assert "not deleted first" in braid.fails(3, "schema", "delete", "orders-value", "--permanent", "--yes")
    assert braid.ok("schema", "delete", "orders-value", "--version", "1") == "deleted version 1 of orders-value\n"
    assert braid.ok("schema", "delete", "orders-value", "--permanent", "--yes") == "deleted orders-value permanently\n"
    assert "not found" in braid.fails(3, "schema", "get", "orders-value")


def test_what_is_typed_wrong_is_told(braid: Braid, tmp_path: Path) -> None:
    text = tmp_path / "order.txt"
    text.write_text(ORDER)
    assert "pass --type" in braid.fails(2, "schema", "register", "orders-value", str(text))
    assert "NAME=SUBJECT:VERSION" in braid.fails(
        2, "schema", "check", "a", str(text), "--type", "avro", "--reference", "x"
    )
    assert "http://HOST:PORT" in braid.fails(2, "schema", "list", "--url", "127.0.0.1:8081")
    refused = "Connection refused; is it the URL of a schema registry?"
    assert refused in braid.fails(5, "schema", "list", "--url", "http://127.0.0.1:1")
