"""Protobuf values as columns: written by Google's library, with the descriptor of its own making."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.registry.errors import ColumnTypeError
from braidlog.registry.protobuf.columns import MessageColumns
from braidlog.registry.protobuf.schema import name_at
from braidlog.registry.schemas import ProtobufSchema, Schema

IMPORTS = "".join(
    f'import "google/protobuf/{each}.proto";\n' for each in ("timestamp", "duration", "wrappers", "struct")
)
EVERY = f"""syntax = "proto3"; package shop;
{IMPORTS}
message Other {{ int32 x = 1; }}
message Every {{
  enum Size {{ SMALL = 0; LARGE = 1; }}
  message Part {{ string name = 1; optional int32 count = 2; }}
  bool b = 1; int32 i = 2; sint64 l = 3; uint32 u = 4; uint64 ul = 5; float f = 6; double d = 7;
  string s = 8; bytes y = 9; Size e = 10; repeated int32 a = 11; map<string, Part> m = 12; Part p = 13;
  repeated Part ps = 14; optional string o = 15; oneof one {{ string name = 16; int64 number = 17; }}
  google.protobuf.Timestamp at = 18; google.protobuf.Duration took = 19; google.protobuf.Int64Value w = 20;
  google.protobuf.Struct any = 21;
}}"""
NUMBERS = {"b": F.TYPE_BOOL, "i": F.TYPE_INT32, "l": F.TYPE_SINT64, "u": F.TYPE_UINT32, "ul": F.TYPE_UINT64}
NUMBERS |= {"f": F.TYPE_FLOAT, "d": F.TYPE_DOUBLE, "s": F.TYPE_STRING, "y": F.TYPE_BYTES}


def googles() -> Any:
    """The class of `Every`, from a descriptor that is written by hand and not by our reader of .proto files."""
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, duration_pb2, wrappers_pb2, struct_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="shop", syntax="proto3")
    file.dependency.extend(f"google/protobuf/{each}.proto" for each in ("timestamp", "duration", "wrappers", "struct"))
    every = file.message_type.add(name="Every")
    every.enum_type.add(name="Size").value.add(name="SMALL", number=0)
    every.enum_type[0].value.add(name="LARGE", number=1)
    part = every.nested_type.add(name="Part")
    part.field.add(name="name", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    part.field.add(
        name="count", number=2, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL, proto3_optional=True, oneof_index=0
    )
    part.oneof_decl.add(name="_count")
    entry = every.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_MESSAGE, type_name=".shop.Every.Part", label=F.LABEL_OPTIONAL)
    for number, (name, kind) in enumerate(NUMBERS.items(), 1):
        every.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
    every.oneof_decl.add(name="one")
    every.oneof_decl.add(name="_o")
    for number, name, kind, label, of, oneof in [
        (10, "e", F.TYPE_ENUM, 1, "shop.Every.Size", None),
        (11, "a", F.TYPE_INT32, 3, "", None),
        (12, "m", F.TYPE_MESSAGE, 3, "shop.Every.MEntry", None),
        (13, "p", F.TYPE_MESSAGE, 1, "shop.Every.Part", None),
        (14, "ps", F.TYPE_MESSAGE, 3, "shop.Every.Part", None),
        (15, "o", F.TYPE_STRING, 1, "", 1),
        (16, "name", F.TYPE_STRING, 1, "", 0),
        (17, "number", F.TYPE_INT64, 1, "", 0),
        (18, "at", F.TYPE_MESSAGE, 1, "google.protobuf.Timestamp", None),
        (19, "took", F.TYPE_MESSAGE, 1, "google.protobuf.Duration", None),
        (20, "w", F.TYPE_MESSAGE, 1, "google.protobuf.Int64Value", None),
        (21, "any", F.TYPE_MESSAGE, 1, "google.protobuf.Struct", None),
    ]:
        made = every.field.add(name=name, number=number, type=kind, label=label)
        if of:
            made.type_name = f".{of}"
        if oneof is not None:
            made.oneof_index, made.proto3_optional = oneof, name == "o"
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Every"))


def message(text: str, name: str = "", **references: str) -> MessageColumns:
    known = {f"{path}.proto": Schema(each, "PROTOBUF") for path, each in references.items()}
    return MessageColumns(ProtobufSchema(text, known), known, name)


def read(kind: MessageColumns, payloads: list[bytes | None]) -> tuple[list[Any], list[str | None]]:
    column, errors = kind.decoder(kind.column_type())(payloads)
    assert column.type == kind.column_type()
    column.validate(full=True)
    return column.to_pylist(), errors


def test_every_type() -> None:
    made = googles()(b=True, i=-5, l=-(2**62), u=2**32 - 1, ul=2**64 - 1, f=0.5, d=-1e300, s="é", y=b"\0\xff", e=1)
    made.a.extend([1, -2])
    made.m["k"].count = 0
    made.p.name = "p"
    made.ps.add(name="q", count=3)
    made.o = ""
    made.number = 9
    made.at.FromDatetime(dt.datetime(1969, 5, 6, 7, 8, 9, 123456))  # noqa: DTZ001 - it takes UTC without saying so
    made.took.FromTimedelta(dt.timedelta(days=-1, microseconds=7))
    made.w.value = 0
    made.any.update({"x": [1, None]})
    empty = googles()()
    unknown = googles()(e=7)
    kind = message(EVERY, "Every")
    found, errors = read(kind, [each.SerializeToString() for each in (made, empty, unknown)] + [None, b"\xff"])
    assert found[0] == {
        "b": True, "i": -5, "l": -(2**62), "u": 2**32 - 1, "ul": Decimal(2**64 - 1), "f": 0.5, "d": -1e300, "s": "é",
        "y": b"\0\xff", "e": "LARGE", "a": [1, -2], "m": [("k", {"name": "", "count": 0})],
        "p": {"name": "p", "count": None}, "ps": [{"name": "q", "count": 3}], "o": "", "name": None, "number": 9,
        "at": dt.datetime(1969, 5, 6, 7, 8, 9, 123456, dt.UTC), "took": dt.timedelta(days=-1, microseconds=7), "w": 0,
        "any": '{"x":[1.0,null]}',
    }  # fmt: skip
    nulls = {name for name, value in found[1].items() if value is None}
    assert nulls == {"p", "o", "name", "number", "at", "took", "w", "any"}
    assert (found[1]["e"], found[2]["e"]) == ("SMALL", "7")
    assert found[3:] == [None, None]
    assert [why is not None for why in errors] == [False, False, False, False, True]


def test_what_was_written_with_another_schema() -> None:
    """Fields are known by their numbers: one that went is passed over, one that came is not there."""
    old = googles()(i=5, s="x", a=[1]).SerializeToString()
    new = message('syntax = "proto3"; package shop; message Every { int64 id = 2; optional string fresh = 99; }')
    assert read(new, [old]) == ([{"id": 5, "fresh": None}], [None])


def test_imports_are_references() -> None:
    money = 'syntax = "proto3"; package money; message Money { int64 cents = 1; }'
    order = 'syntax = "proto3"; import "money.proto"; message Order { money.Money price = 1; }'
    kind = message(order, money=money)
    assert kind.column_type() == pa.struct([("price", pa.struct([("cents", pa.int64())]))])
    assert read(kind, [b"\x0a\x02\x08\x05"]) == ([{"price": {"cents": 5}}], [None])


def test_some_of_the_fields_and_of_the_messages() -> None:
    kind = message(EVERY, "shop.Every")
    assert (kind.name, kind.indexes) == ("shop.Every", (1,))
    wanted = pa.struct([("p", pa.struct([("count", pa.int32())])), ("s", pa.string())])
    assert kind.column_type(wanted) == wanted
    assert message(EVERY).name == "shop.Other"
    inner = message(EVERY, "Every.Part")
    assert (inner.name, inner.indexes) == ("shop.Every.Part", (1, 0))
    file = ProtobufSchema(EVERY, {}).file
    assert [name_at(file, each) for each in ((0,), (1, 0), (2,), (1, 9))] == ["shop.Other", "shop.Every.Part", "", ""]
    with pytest.raises(ColumnTypeError, match=r"no message 'Nope' in the schema; it has shop.Other, shop.Every"):
        message(EVERY, "Nope")
    tree = 'syntax = "proto3"; message Tree { int32 v = 1; repeated Tree t = 2; }'
    with pytest.raises(ColumnTypeError, match=r"Tree.t\[\]: Tree contains itself"):
        message(tree).column_type()
    assert message(tree).column_type(pa.struct([("v", pa.int32())])) == pa.struct([("v", pa.int32())])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_bad(data: bytes) -> None:
    found, errors = read(KIND, [data])
    assert (found[0] is None) == (errors[0] is not None)


KIND = message(EVERY, "Every")


def test_messages_that_use_others_twice_are_no_more_columns_than_the_limit() -> None:
    """Each of 60 messages has two fields of the next: 2^60 columns."""
    text = "".join(f"message M{each} {{ M{each + 1} a = 1; M{each + 1} b = 2; }}" for each in range(60))
    kind = message(f'syntax = "proto3"; {text} message M60 {{ int32 v = 1; }}', "M0")
    with pytest.raises(ColumnTypeError, match="more than 10000 columns"):
        kind.column_type()
    assert kind.field_types() == {}
