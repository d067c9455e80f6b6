"""Protobuf: text and descriptors are the same schema, Google's own library reads ours, and the published rules as cases.

Source of the rules: protobuf.dev, "Language Guide (proto 3)", "Updating A Message Type"; Confluent's documentation of Schema
Registry, "Formats, Serializers, and Deserializers", Protobuf. Apicurio's rules judge the cases in
`tests/interop/test_proto_rules.py`.
"""

import base64

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2

from braidlog.registry.errors import RegistryError
from braidlog.registry.schemas import PROTOBUF, ProtobufSchema, Reference, Schema, referenced
from braidlog.registry.schemas import read as read_schema

WHOLE = """
// everything that is in use
syntax = "proto3";
package p.q;
import "google/protobuf/timestamp.proto";
import public "other.proto";
option java_package = "com.p"; option java_multiple_files = true;
message A {
  option deprecated = true;
  string x = 1 [json_name = "xx", deprecated = true];
  optional int32 y = 2;
  map<string, B> m = 3;
  oneof z { B b = 4; E e = 5; }
  google.protobuf.Timestamp t = 6;
  repeated .p.q.A.N n = 7 [packed=false];
  o.Other other = 8;
  message N { sint64 i = 1; enum In { I0 = 0; } In in = 2; }
  reserved 19, 21 to 23, 100 to max; reserved "foo", "bar";
}
message B {}
enum E { option allow_alias = true; E0 = 0; E1 = -1; E2 = 0x10; E3 = 16; }
service S { rpc F (A) returns (stream B); rpc G (stream B) returns (B) { option deprecated = true; } }
"""
OTHER = 'syntax = "proto3"; package o; message Other { int32 a = 1; }'


def find(_: Reference) -> Schema:
    return Schema(OTHER, PROTOBUF)


def read(text: str) -> ProtobufSchema:
    return read_referring(text, *([REFERENCE] if "other.proto" in text else []))


REFERENCE = Reference("other.proto", "other", 1)


def read_referring(text: str, *references: Reference) -> ProtobufSchema:
    schema = Schema(text, PROTOBUF, references)
    found = read_schema(schema, referenced(schema, find))
    assert isinstance(found, ProtobufSchema)
    return found


def test_googles_own_library_reads_a_descriptor_of_ours_and_we_read_it_back() -> None:
    ours = read(WHOLE)
    data = base64.b64decode(ours.formatted("serialized"))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    other = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(read(OTHER).formatted("serialized")))
    other.name = "other.proto"
    pool.Add(other)
    pool.AddSerializedFile(data)
    message = pool.FindMessageTypeByName("p.q.A")
    named = {each.name: each.number for each in message.fields}
    assert named == {"x": 1, "y": 2, "m": 3, "b": 4, "e": 5, "t": 6, "n": 7, "other": 8}
    assert message.fields_by_name["y"].has_presence
    assert message.fields_by_name["m"].message_type.GetOptions().map_entry
    assert message.fields_by_name["x"].json_name == "xx"
    assert pool.FindEnumTypeByName("p.q.E").values_by_name["E1"].number == -1
    assert pool.FindFileByName("default").GetOptions().java_package == "com.p"
    assert pool.FindServiceByName("p.q.S").methods_by_name["F"].server_streaming
    again = read_referring(base64.b64encode(data).decode(), REFERENCE)
    # A name of JSON is written by few, and numbers of reserved fields by none: what has a meaning is the same.
    assert read(again.text).identity == again.identity
    assert again.misfits(ours) == ours.misfits(again) == []


def test_blanks_comments_and_ways_to_name_a_type_make_no_other_schema() -> None:
    one = 'syntax="proto3";package a;message M{N n=1;message N{}}'
    other = 'syntax = "proto3"; /* x */ package a;\nmessage M { .a.M.N n = 1; message N {} } // y'
    assert read(one).identity == read(other).identity
    assert read(one).text == one


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "message",
        "message M {",
        'syntax = "proto4"; message M {}',
        "message M { int32 a = 0; }",
        "message M { int32 a = 19001; }",
        "message M { int32 a = 1; int32 b = 1; }",
        "message M { Nope a = 1; }",
        "message M { map<float, int32> a = 1; }",
        "message M { optional group G = 1 {} }",
        'edition = "2023"; message M {}',
        'import "nobody.proto"; message M {}',
        "enum E {}",
        "message M {" * 100 + "}" * 100,
        base64.b64encode(b"\x0a\xff\xff\xff\xff\x0f").decode(),
        base64.b64encode(bytes(range(60))).decode(),
    ],
)
def test_what_is_no_schema_is_refused(wrong: str) -> None:
    with pytest.raises(RegistryError):
        read(wrong)


def message(body: str, more: str = "") -> str:
    return f'syntax = "proto3"; message M {{ {body} }} {more}'


READ = [  # new, old
    (message("int32 a = 1; string b = 2;"), message("int32 a = 1;")),
    (message(""), message("int32 a = 1;")),
    (message("int32 renamed = 1;"), message("int32 a = 1;")),
    (message("int64 a = 1;"), message("int32 a = 1;")),
    (message("bytes a = 1;"), message("string a = 1;")),
    (message("int32 a = 1;"), message("E a = 1;", "enum E { Z = 0; }")),
    (message("repeated string a = 1;"), message("string a = 1;")),
    (message("", "message N {}"), message("")),
    (message("E a = 1;", "enum E { Z = 0; Y = 1; }"), message("E a = 1;", "enum E { Z = 0; }")),
    (message("oneof o { int32 a = 1; }"), message("int32 a = 1;")),
    (message("oneof o { int32 a = 1; int32 b = 2; }"), message("oneof o { int32 a = 1; }")),
    (message("N n = 1;", "message N {}").replace(";", "; package x;", 1), message("N n = 1;", "message N {}")),
]
NOT_READ = [
    (message(""), message("", "message N {}"), "MESSAGE_REMOVED"),
    (message("string a = 1;"), message("int32 a = 1;"), "FIELD_SCALAR_KIND_CHANGED"),
    (message("sint32 a = 1;"), message("int32 a = 1;"), "FIELD_SCALAR_KIND_CHANGED"),
    (message("double a = 1;"), message("float a = 1;"), "FIELD_SCALAR_KIND_CHANGED"),
    (message("M a = 1;"), message("int32 a = 1;"), "FIELD_KIND_CHANGED"),
    (message("M a = 1;", "message N {}"), message("N a = 1;", "message N {}"), "FIELD_NAMED_TYPE_CHANGED"),
    (message("map<int32, int32> a = 1;"), message("map<int32, string> a = 1;"), "FIELD_NAMED_TYPE_CHANGED"),
    (message("repeated int32 a = 1;"), message("int32 a = 1;"), "FIELD_NUMERIC_LABEL_CHANGED"),
    (message("oneof o { int32 a = 1; int32 b = 2; }"), message("int32 a = 1; int32 b = 2;"), "MULTIPLE_FIELDS"),
    (
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("oneof o { int32 a = 1; } int32 b = 2;"),
        "FIELD_MOVED_TO_EXISTING_ONEOF",
    ),
    (message("oneof o { int32 a = 1; }"), message("oneof o { int32 a = 1; int32 b = 2; }"), "ONEOF_FIELD_REMOVED"),
    ("message M { required int32 a = 1; }", "message M {}", "REQUIRED_FIELD_ADDED"),
    ("message M {}", "message M { required int32 a = 1; }", "REQUIRED_FIELD_REMOVED"),
]


@pytest.mark.parametrize(("new", "old"), READ)
def test_it_reads(new: str, old: str) -> None:
    assert read(new).misfits(read(old)) == []


@pytest.mark.parametrize(("new", "old", "why"), NOT_READ)
def test_it_does_not_read_and_says_why(new: str, old: str, why: str) -> None:
    assert why in "".join(read(new).misfits(read(old)))
