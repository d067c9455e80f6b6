"""Values with schemas as typed columns: written by Confluent's serializers, with schemas that evolved since."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from pyspark.sql import SparkSession
from tests.spark.source.topics import Runtime

from braidlog.client.errors import ConnectError
from braidlog.spark.columns import ColumnError
from braidlog.spark.options import OptionError
from braidlog.spark.source.columns import default_schema
from braidlog.spark.source.options import Query
from braidlog.spark.source.readers import TopicReader
from braidlog.spark.source.values import BadRecordError


def avro(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields)})


ID: Any = {"name": "id", "type": "long"}
PRICE: Any = {"name": "price", "type": "int"}
OLD = avro(ID, PRICE, {"name": "gone", "type": "string"})
NEW = avro(ID, {**PRICE, "type": "double"}, {"name": "note", "type": ["null", "string"], "default": None})


def serialized(runtime: Runtime, topic: str, serializer: Any, *values: Any) -> None:
    runtime.write(topic, 0, [serializer(each, SerializationContext(topic, MessageField.VALUE)) for each in values])


def orders(runtime: Runtime, name: str) -> str:
    """A topic with values of two versions by turns, one of no schema, one of an unknown one, and a tombstone."""
    topic = runtime.name(name)
    with SchemaRegistryClient({"url": runtime.registry}) as client:
        serialized(runtime, topic, AvroSerializer(client, OLD), {"id": 1, "price": 5, "gone": "x"})
        serialized(runtime, topic, AvroSerializer(client, NEW), {"id": 2, "price": 2.5, "note": "n"})
        serialized(runtime, topic, AvroSerializer(client, OLD), {"id": 3, "price": 6, "gone": "y"})
    runtime.write(topic, 0, [b"none", b"\0\0\x0f\xff\xff\x02", None, b"\0\0\0\0"])
    return topic


def rows(runtime: Runtime, topic: str, columns: Any = None, **options: str) -> list[Any]:
    """As a task of Spark's gives them."""
    from pyspark.sql.types import StructType, _parse_datatype_string  # noqa: PLC0415

    given = {"servers": runtime.url, "subscribe": topic, **options}
    query = Query(given, streaming=False)
    kind = _parse_datatype_string(columns or default_schema(query))
    assert isinstance(kind, StructType)
    reader = TopicReader(query, kind)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_avro_in_spark(spark: SparkSession, runtime: Runtime) -> None:
    """The newest version reads what the first one wrote: a number was promoted, a field went, another came."""
    topic = orders(runtime, "orders")
    options = {"servers": runtime.url, "subscribe": topic, "valueFormat": "avro", "schemaRegistry": runtime.registry}
    frame = spark.read.format("braidlog").options(**options).load()
    assert frame.schema["value"].dataType.simpleString() == "struct<id:bigint,price:double,note:string>"
    first, second, third, bare, unknown, tombstone, short = frame.orderBy("offset").collect()
    assert first.value.asDict() == {"id": 1, "price": 5.0, "note": None}
    assert second.value.asDict() == {"id": 2, "price": 2.5, "note": "n"}
    assert third.value.asDict() == {"id": 3, "price": 6.0, "note": None}
    assert (bare.value, bare._error[:12]) == (None, "no schema id")
    assert (unknown.value, unknown._error) == (None, "schema 1048575: not in the registry")
    assert (tombstone.value, tombstone._error) == (None, None)
    assert (short.value, short._error[:12]) == (None, "no schema id")
    pruned = spark.read.format("braidlog").options(**options).schema("value STRUCT<note: STRING>, offset BIGINT").load()
    assert [row.value and row.value.note for row in pruned.orderBy("offset").collect()] == [None, "n", *[None] * 5]


@pytest.fixture(scope="module")
def spark_types(spark: SparkSession) -> SparkSession:
    """Spark's parser of DDL needs one."""
    return spark


@pytest.mark.usefixtures("spark_types")
class TestRows:
    def test_an_older_version_or_a_file_may_read_too(self, runtime: Runtime, tmp_path: Path) -> None:
        topic = orders(runtime, "versions")
        options = {"valueFormat": "avro", "schemaRegistry": runtime.registry}
        first, second, *_ = rows(runtime, topic, **options, valueVersion="1")
        assert first["value"] == {"id": 1, "price": 5, "gone": "x"}
        assert second["value"] is None
        assert "No default value for field gone" in second["_error"] or "not of its schema" in second["_error"]
        file = tmp_path / "mine.avsc"
        file.write_text(avro({"name": "number", "type": "long", "aliases": ["id"]}))
        first, second, *_ = rows(runtime, topic, **options, valueSchemaFile=str(file))
        assert [first["value"], second["value"]] == [{"number": 1}, {"number": 2}]
        with pytest.raises(BadRecordError, match=rf"{topic}/0 offset 3: no schema id"):
            rows(runtime, topic, **options, badRecords="fail")

    def test_a_file_alone_reads_values_without_ids(self, runtime: Runtime, tmp_path: Path) -> None:
        file, topic = tmp_path / "bare.avsc", runtime.name("bare")
        file.write_text(avro(ID))
        runtime.write(topic, 0, [b"\x02", b"\x02\x02"])
        found = rows(runtime, topic, valueFormat="avro", valueSchemaFile=str(file))
        assert [each["value"] for each in found] == [{"id": 1}, None]

    def test_protobuf(self, runtime: Runtime) -> None:
        topic = runtime.name("proto")
        with SchemaRegistryClient({"url": runtime.registry}) as client:
            client.set_compatibility(f"{topic}-value", "NONE")
            for kind, value in ((shop("Order", "id"), {"id": 7}), (shop("Other", "x"), {"x": 1})):
                serializer = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
                serialized(runtime, topic, serializer, kind(**value))
            both = "message Other { int64 x = 1; } message Order { int64 id = 1; string note = 2; }"
            text = f'syntax = "proto3"; package shop; {both}'
            client.register_schema(f"{topic}-value", Schema(text, "PROTOBUF"))
        options = {"valueFormat": "protobuf", "schemaRegistry": runtime.registry}
        first, second = rows(runtime, topic, **options, valueMessage="Order")
        assert first["value"] == {"id": 7, "note": ""}
        assert "message 'shop.Other'; 'shop.Order' is expected" in second["_error"]
        first, second = rows(runtime, topic, **options)
        assert (first["value"], second["value"]) == (None, {"x": 1})

    def test_json(self, runtime: Runtime) -> None:
        topic = runtime.name("json")
        shape = {"title": "T", "type": "object", "properties": {"id": {"type": "integer"}, "in": {"type": "string"}}}
        with SchemaRegistryClient({"url": runtime.registry}) as client:
            serialized(runtime, topic, JSONSerializer(json.dumps(shape), client), {"id": 1, "in": "x"}, {"id": 2})
        runtime.write(topic, 0, [b'{"id":3}', b"\0\0\0\0\1{", None, b'\0\0\0\0\1{"id":"x"}'])
        found = rows(runtime, topic, valueFormat="json", schemaRegistry=runtime.registry)
        assert [each["value"] for each in found[:2]] == [{"id": 1, "in": "x"}, {"id": 2, "in": None}]
        assert [each["value"] for each in found[2:]] == [None, None, None, {"id": None, "in": None}]
        assert [(each["_error"] or "")[:12] for each in found[2:]] == [
            "no schema id",
            "not a JSON o",
            "",
            "not of value",
        ]

    def test_what_is_wrong_is_said(self, runtime: Runtime, tmp_path: Path) -> None:
        topic = orders(runtime, "wrong")
        by_registry = {"valueFormat": "avro", "schemaRegistry": runtime.registry}
        odd = tmp_path / "odd.avsc"
        odd.write_text(avro({"name": "u", "type": ["int", "string"]}))
        for options, said in [
            ({**by_registry, "valueFormat": "protobuf"}, f"{topic}-value version latest has type AVRO"),
            ({**by_registry, "valueSchemaFile": str(tmp_path / "none")}, "the driver cannot read it"),
            ({**by_registry, "subscribe": "a,b"}, "it must be set if several topics may be read"),
            ({**by_registry, "schemaRegistry": "ftp://x"}, "it must be the address of a schema registry"),
        ]:
            with pytest.raises(OptionError, match=said):
                rows(runtime, topic, **options)
        with pytest.raises(ColumnError, match=r"Order.u: a union of int, string cannot be a column.*\.schema"):
            rows(runtime, topic, **by_registry, valueSchemaFile=str(odd))
        with pytest.raises(ColumnError, match="Order has no field 'nope'"):
            rows(runtime, topic, "value STRUCT<nope: INT>", **by_registry)
        with pytest.raises(ConnectError, match="is it the URL of a schema registry"):
            rows(runtime, topic, **{**by_registry, "schemaRegistry": "http://127.0.0.1:1"})


def shop(name: str, field: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="shop", syntax="proto3")
    file.message_type.add(name=name).field.add(name=field, number=1, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
