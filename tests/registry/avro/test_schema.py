"""Avro: what is a schema, what is the same one, and what reads what.

Apache Avro's own `SchemaCompatibility` is asked about the pairs below, and about many more, in `test_avro_compatibility.py`.
"""

import json
from typing import Any

import pytest

from braidlog.registry.avro.avro_compatibility import misfits
from braidlog.registry.avro.schema import parse
from braidlog.registry.errors import Code, RegistryError


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


LIST = record(field("next", ["null", "R"]))
LONGER = record(field("next", ["null", "R"]), field("value", "int", default=0))

READ = [  # reader, writer
    ("long", "int"),
    ("float", "long"),
    ("double", "float"),
    ("string", "bytes"),
    ("bytes", "string"),
    (["null", "int"], "int"),
    (["null", "long"], ["null", "int"]),
    ("int", ["int"]),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
    ({"type": "map", "values": "double"}, {"type": "map", "values": "int"}),
    (record(), record(field("a", "int"))),
    (record(field("a", "int", default=1)), record()),
    (record(field("b", "int", aliases=["a"])), record(field("a", "int"))),
    (record(name="S", aliases=["R"]), record()),
    (record(namespace="x"), record(namespace="y")),
    (enum("A", "B"), enum("A")),
    (enum("A", default="A"), enum("A", "B")),
    (fixed(4), fixed(4)),
    (LONGER, LIST),
    (LIST, LONGER),
]
NOT_READ = [
    ("int", "long", "TYPE_MISMATCH"),
    ("float", "double", "TYPE_MISMATCH"),
    ("int", "string", "TYPE_MISMATCH"),
    ("int", ["null", "int"], "TYPE_MISMATCH"),
    (["null", "string"], "int", "MISSING_UNION_BRANCH"),
    (["null", "int"], ["null", "int", "boolean"], "MISSING_UNION_BRANCH"),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "TYPE_MISMATCH"),
    ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "TYPE_MISMATCH"),
    (record(field("a", "int")), record(), "READER_FIELD_MISSING_DEFAULT_VALUE"),
    (record(field("a", "int")), record(field("a", "string")), "TYPE_MISMATCH"),
    (record(name="S"), record(), "NAME_MISMATCH"),
    (enum("A"), enum("A", "B"), "MISSING_ENUM_SYMBOLS"),
    (fixed(4), fixed(5), "FIXED_SIZE_MISMATCH"),
    (fixed(4, "G"), fixed(4), "NAME_MISMATCH"),
    (record(field("next", ["null", "R"]), field("v", "int")), LIST, "READER_FIELD_MISSING_DEFAULT_VALUE"),
]


def root(declared: Any) -> Any:
    return parse(json.dumps(declared)).root


@pytest.mark.parametrize(("reader", "writer"), READ, ids=repr)
def test_it_reads(reader: Any, writer: Any) -> None:
    assert misfits(root(reader), root(writer)) == []


@pytest.mark.parametrize(("reader", "writer", "why"), NOT_READ, ids=repr)
def test_it_does_not_read_and_says_why(reader: Any, writer: Any, why: str) -> None:
    found = misfits(root(reader), root(writer))
    assert found
    assert why in "".join(found)


def test_schemas_that_differ_in_how_they_are_written_are_the_same() -> None:
    plain = (
        '{"type":"record","name":"R","namespace":"x","fields":[{"name":"a","type":"string"},{"name":"b","type":"E2"}]}'
    )
    known = parse('{"type":"enum","name":"x.E2","symbols":["A"]}').names
    assert parse(plain, known).canonical == plain
    written = """{"fields": [{"type": {"type": "string"}, "name": "a"}, {"name": "b", "type": "x.E2"}],
                  "name": "x.R", "type": "record"}"""
    assert parse(written, known).canonical == plain
    assert parse('{"type": "string"}').canonical == parse("string").canonical == '"string"'
    logical = '{"type":"long","logicalType":"timestamp-millis"}'
    assert parse(logical).canonical == logical


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "{",
        '"nope"',
        "7",
        "{}",
        '{"type":"record","name":"R"}',
        '{"type":"record","name":"1R","fields":[]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":2147483648}]}',
        '{"type":"enum","name":"E","symbols":["A","A"]}',
        '{"type":"enum","name":"E","symbols":["A"],"default":"B"}',
        '{"type":"fixed","name":"F"}',
        '{"type":"array"}',
        '["int","int"]',
        '["int",["string"]]',
        '[{"type":"enum","name":"E","symbols":["A"]},{"type":"fixed","name":"E","size":1}]',
        '{"type":"array","items":' * 200 + '"int"' + "}" * 200,
        "[" * 100_000,
    ],
)
def test_what_is_no_schema_is_refused(wrong: str) -> None:
    with pytest.raises(RegistryError) as caught:
        parse(wrong)
    assert caught.value.code is Code.INVALID_SCHEMA


def test_a_type_that_is_used_many_times_is_compared_once() -> None:
    """Each of 60 records has two fields of the next: as a tree it would have 2^60 leaves."""
    kinds: Any = "int"
    for number in range(60):
        kinds = record(field("a", kinds), field("b", f"R{number - 1}" if number else "int"), name=f"R{number}")
    text = json.dumps(kinds)
    assert misfits(parse(text).root, parse(text).root) == []


def test_checks_of_defaults_are_bounded() -> None:
    """Each of 40 records has two fields of the one before, by default an empty one: together 2^40 values."""
    innermost = record(field("a", "int", default=0), name="R0")
    kinds = [
        record(*(field(name, f"R{number}", default={}) for name in "ab"), name=f"R{number + 1}") for number in range(40)
    ]
    with pytest.raises(RegistryError, match="use smaller defaults") as caught:
        parse(json.dumps([innermost, *kinds]))
    assert caught.value.code is Code.INVALID_SCHEMA
