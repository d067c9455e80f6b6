"""Values as JSON: bytes written by fastavro and by Google's library, read by the schemas they name."""

import datetime as dt
import io
import json
import sys
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2

from braidlog.registry import framing
from braidlog.registry.errors import Code, RegistryError
from braidlog.registry.protobuf.messages import MessageType
from braidlog.registry.schemas import JSON, PROTOBUF, ProtobufSchema, Reference, Schema
from braidlog.registry.value_json import VALUE_BYTES_MAX, SchemaValues, UndecodedError

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
    ],
}
TREE = '{"type":"record","name":"Tree","fields":[{"name":"left","type":["null","Tree"]}]}'
PART = 'syntax = "proto3"; package shop; message Part { int64 n = 1; }'
PROTO = """syntax = "proto3"; package shop; import "part.proto";
message Other { string s = 1; }
message Outer { message Inner { bool on = 1; repeated Part parts = 2; bytes raw_bytes = 3; } }"""
SCHEMAS = {
    1: Schema(json.dumps(ORDER)),
    2: Schema(TREE),
    3: Schema(PROTO, PROTOBUF, (Reference("part.proto", "part", 1),)),
    4: Schema('{"type": "object"}', JSON),
}
REFERRED = {"part.proto": Schema(PART, PROTOBUF)}


class Registry:
    """What it holds, and how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def schema_of(self, number: int) -> Schema:
        self.asked.append(number)
        if number not in SCHEMAS:
            raise RegistryError(Code.SCHEMA_NOT_FOUND, "not found")
        return SCHEMAS[number]

    def find(self, reference: Reference) -> Schema:
        return REFERRED[reference.name]


def read(value: bytes) -> Any:
    registry = Registry()
    return json.loads(SchemaValues(registry.schema_of, registry.find).json_of(value))


def avro_value(schema: dict[str, Any], value: Any, number: int = 1) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return framing.head(number) + out.getvalue()


def order(**changes: Any) -> bytes:
    made = {
        "id": 7,
        "note": "first",
        "raw": b"text",
        "price": Decimal("12.50"),
        "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "tags": {"a": [1, 2]},
    }
    return avro_value(ORDER, made | changes)


def test_avro_is_read_by_the_schema_it_names() -> None:
    assert read(order()) == {
        "id": 7,
        "note": "first",
        "raw": "text",
        "price": "12.50",
        "at": 1767312000000,
        "tags": {"a": [1, 2]},
    }
    odd = read(order(note=None, raw=b"\xff\0"))
    assert (odd["note"], odd["raw"]) == (None, {"base64": "/wA="})


def proto_value(indexes: tuple[int, ...], **fields: Any) -> bytes:
    schema = ProtobufSchema(PROTO, REFERRED)
    name, written = {(0,): ("Other", b"\x00"), (1, 0): ("Outer.Inner", b"\x04\x02\x00")}[indexes]
    message = MessageType(schema, REFERRED, name).make(**fields)
    payload: bytes = message.SerializeToString()
    return framing.head(3) + written + payload


def test_protobuf_is_read_by_the_message_at_its_place() -> None:
    assert read(proto_value((0,), s="x")) == {"s": "x"}
    found = read(proto_value((1, 0), on=True, parts=[{"n": 2**53 + 1}]))
    assert found == {
        "on": True,
        "parts": [{"n": str(2**53 + 1)}],
        "raw_bytes": "",
    }  # its JSON writes large numbers as text


def test_bytes_of_protoc_are_read() -> None:
    """What Google's own message of the same fields writes: field 1, a varint; not by our descriptor."""
    written = descriptor_pb2.EnumValueDescriptorProto(name="x").SerializeToString()
    assert read(framing.head(3) + b"\0" + written) == {"s": "x"}


def test_json_is_what_stands_behind_its_id() -> None:
    assert read(framing.head(4) + b'{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"plain", "no schema id"),
        (b"", "no schema id"),
        (framing.head(9) + b"x", "schema 9: not found"),
        (order()[:-1], "schema 1: not of its schema"),
        (order() + b"x", "schema 1: not of its schema: 1 bytes are left over"),
        (framing.head(2) + b"\0", "schema 2: .*contains itself"),
        (framing.head(3) + b"\0\xff", "schema 3: not a message shop.Other"),
        (framing.head(3) + b"\x02\x12", r"schema 3: no message at \(9,\)"),
        (framing.head(3) + b"\xff", "schema 3: invalid message indexes|invalid message indexes"),
        (framing.head(4) + b"{", "schema 4: "),
        (framing.head(4) + b"[" * 100_000, "schema 4: "),
        (framing.head(4) + b"1" * VALUE_BYTES_MAX, "longer than"),
    ],
)
def test_what_is_not_of_its_schema_is_told(value: bytes, said: str) -> None:
    with pytest.raises(UndecodedError, match=said):
        read(value)


def test_a_schema_is_asked_for_once_and_what_is_unknown_again() -> None:
    registry = Registry()
    values = SchemaValues(registry.schema_of, registry.find)
    for _ in range(3):
        values.json_of(order())
        with pytest.raises(UndecodedError):
            values.json_of(framing.head(9))
    assert registry.asked == [1, 9, 9, 9]


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "braidlog.registry.avro.values", raising=False)
    monkeypatch.delattr("braidlog.registry.avro.values", raising=False)
    with pytest.raises(UndecodedError, match=r"fastavro is not installed: pip install 'braidlog\[schemas\]'"):
        read(order())
