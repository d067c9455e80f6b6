"""Avro values as columns: written by Apache's own library, and resolved as its reader resolves them."""

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import avro.io
import avro.schema
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.registry.avro.columns import column_type, decoder, field_types
from braidlog.registry.avro.schema import Type, parse
from braidlog.registry.avro.values import check_bounded
from braidlog.registry.errors import ColumnTypeError
from braidlog.registry.value_columns import COLUMNS_MAX

UTC = dt.UTC


def root(schema: Any) -> Type:
    return parse(json.dumps(schema)).root


def written(schema: Any, *values: Any) -> list[bytes]:
    """By Apache's library."""
    made = []
    for value in values:
        out = io.BytesIO()
        avro.io.DatumWriter(avro.schema.parse(json.dumps(schema))).write(value, avro.io.BinaryEncoder(out))
        made.append(out.getvalue())
    return made


def read(reader: Any, writer: Any, payloads: list[bytes | None]) -> tuple[list[Any], list[str | None]]:
    kind = column_type(root(reader))
    column, errors = decoder(root(reader), root(writer), kind)(payloads)
    assert column.type == kind
    assert len(column) == len(errors) == len(payloads)
    column.validate(full=True)
    return column.to_pylist(), errors


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, *default: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **({"default": default[0]} if default else {}), **more}


EVERY = record(
    field("b", "boolean"),
    field("i", "int"),
    field("l", "long"),
    field("f", "float"),
    field("d", "double"),
    field("s", "string"),
    field("y", "bytes"),
    field("x", {"type": "fixed", "name": "F", "size": 2}),
    field("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    field("a", {"type": "array", "items": ["null", "int"]}),
    field("m", {"type": "map", "values": {"type": "array", "items": "string"}}),
    field("u", ["null", "string"]),
    field("n", ["null", record(field("z", "long"), field("e", "E"), name="N")]),
    field("day", {"type": "int", "logicalType": "date"}),
    field("ms", {"type": "long", "logicalType": "timestamp-millis"}),
    field("us", {"type": "long", "logicalType": "timestamp-micros"}),
    field("c", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
)
VALUE = {
    "b": True,
    "i": -5,
    "l": 2**62,
    "f": 0.5,
    "d": -1e300,
    "s": "é",
    "y": b"\0\xff",
    "x": b"ab",
    "e": "B",
    "a": [1, None, 3],
    "m": {"k": ["x", "y"], "none": []},
    "u": None,
    "n": {"z": 7, "e": "A"},
    "day": dt.date(2024, 5, 6),
    "ms": dt.datetime(2024, 5, 6, 7, 8, 9, 123000, UTC),
    "us": dt.datetime(1969, 5, 6, 7, 8, 9, 123456, UTC),
    "c": Decimal("-1234.56"),
}


def test_every_type() -> None:
    other = {**VALUE, "u": "there", "n": None, "a": [], "m": {}}
    found, errors = read(EVERY, EVERY, [*written(EVERY, VALUE, other), None])
    assert errors == [None] * 3
    for given_value, made in zip([VALUE, other], found, strict=False):
        assert {**made, "m": dict(made["m"])} == given_value
    assert found[2] is None


ONE = record(field("a", "int"))
A = {"a": 1}
WIDE = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
ITEM = record(field("b", "double", aliases=["a"]), field("c", "int", 1), name="I")
RESOLVED: list[tuple[Any, Any, Any, Any]] = [
    ("int", "long", 5, 5),
    ("int", "float", 5, 5.0),
    ("long", "double", 5, 5.0),
    ("float", "double", 0.5, 0.5),
    ("int", ["null", "long"], 5, 5),
    (["null", "int"], ["null", "double"], 5, 5.0),
    (record(field("a", "int"), field("gone", {"type": "array", "items": "string"})), ONE, {**A, "gone": ["x"]}, A),
    (ONE, record(field("new", "string", "x"), field("a", "long")), A, {"new": "x", "a": 1}),
    (ONE, record(field("n", ["null", "int"], None)), A, {"n": None}),
    (ONE, record(field("n", ["int", "null"], 5)), A, {"n": 5}),
    (ONE, record(field("l", {"type": "array", "items": "int"}, [1, 2])), A, {"l": [1, 2]}),
    (ONE, record(field("m", {"type": "map", "values": "int"}, {"k": 2})), A, {"m": [("k", 2)]}),
    (ONE, record(field("r", record(field("z", "int", 3), name="Z"), {"z": 4})), A, {"r": {"z": 4}}),
]
BY_THE_SPECIFICATION: list[tuple[Any, Any, Any, Any]] = [
    ("string", "bytes", "é", "é".encode()),
    ("bytes", "string", b"e", "e"),
    (["int", "long"], "long", 5, 5),
    (ONE, record(field("b", "int", aliases=["a"])), A, {"b": 1}),
    (ONE, record(field("y", "bytes", "é\0")), A, {"y": b"\xe9\0"}),
    (WIDE, {**WIDE, "symbols": ["A", "B"], "default": "A"}, "C", "A"),
    (
        {"type": "array", "items": record(field("a", "int"), name="I")},
        {"type": "array", "items": ITEM},
        [A],
        [{"b": 1.0, "c": 1}],
    ),
]
"""What Apache's Python does not do, or does otherwise than its Java."""


@pytest.mark.parametrize(("writer", "reader", "value", "meant"), [*RESOLVED, *BY_THE_SPECIFICATION])
def test_what_was_written_with_another_schema(writer: Any, reader: Any, value: Any, meant: Any) -> None:
    assert read(reader, writer, [*written(writer, value)]) == ([meant], [None])


@pytest.mark.parametrize(("writer", "reader", "value", "meant"), RESOLVED)
def test_apaches_reader_says_the_same(writer: Any, reader: Any, value: Any, meant: Any) -> None:
    by_apache = avro.io.DatumReader(avro.schema.parse(json.dumps(writer)), avro.schema.parse(json.dumps(reader)))
    found = by_apache.read(avro.io.BinaryDecoder(io.BytesIO(written(writer, value)[0])))
    assert found == ({"m": dict(meant["m"])} if isinstance(meant, dict) and "m" in meant else meant)


def test_what_only_some_values_can_be_read_as_is_read_of_those() -> None:
    """A reader's schema that lost a symbol, or that takes no null."""
    wide, narrow = ({"type": "enum", "name": "E", "symbols": [*each]} for each in ("ABC", "AB"))
    writer = record(field("e", wide), field("n", ["null", "int"]))
    reader = record(field("e", narrow), field("n", "int"))
    payloads = written(writer, {"e": "A", "n": 1}, {"e": "C", "n": 1}, {"e": "B", "n": None})
    found, errors = read(reader, writer, [*payloads])
    assert found == [{"e": "A", "n": 1}, None, None]
    assert errors[0] is None
    assert all(why is not None and why.startswith("not of its schema") for why in errors[1:])


def test_bad_values_are_found_among_good_ones() -> None:
    schema = record(field("i", "int"), field("s", "string"))
    good = written(schema, {"i": 1, "s": "a"}, {"i": 2, "s": "b"})
    too_wide = written("long", 2**40)[0] + written("string", "x")[0]
    payloads: list[bytes | None] = [
        good[0],
        good[0] + b"!",
        good[0][:-1],
        b"",
        b"\x02\x02\xff",
        too_wide,
        None,
        good[1],
    ]
    found, errors = read(schema, schema, payloads)
    assert [None if each is None else each["i"] for each in found] == [1, None, None, None, None, None, None, 2]
    assert [why is not None for why in errors] == [False, True, True, True, True, True, False, False]
    assert errors[1] == "not of its schema: 1 bytes are left over"
    assert errors[5] is not None
    assert "does not fit" in errors[5]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_bad(data: bytes) -> None:
    found, errors = read(EVERY, EVERY, [data])
    assert (found[0] is None) == (errors[0] is not None)


def test_some_of_the_fields() -> None:
    wanted = pa.struct([("n", pa.struct([("z", pa.int64())])), ("s", pa.string())])
    kind = column_type(root(EVERY), wanted)
    assert kind == wanted
    column, _ = decoder(root(EVERY), root(EVERY), kind)(written(EVERY, VALUE))  # type: ignore[arg-type]
    assert column.to_pylist() == [{"n": {"z": 7}, "s": "é"}]
    with pytest.raises(ColumnTypeError, match=r"R has no field 'nope'; it has b, i"):
        column_type(root(EVERY), pa.struct([("nope", pa.int32())]))


LIST = record(field("v", "int"), field("next", ["null", "R"]))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (LIST, "R.next: R contains itself"),
        (record(field("u", ["int", "string"])), "R.u: a union of int, string cannot be a column"),
        (record(field("u", "null")), "R.u: null cannot be a column"),
        (record(field("c", {"type": "bytes", "logicalType": "decimal", "precision": 50})), "50 digits"),
    ],
)
def test_what_is_no_column(schema: Any, said: str) -> None:
    with pytest.raises(ColumnTypeError, match=said):
        column_type(root(schema))


def test_values_that_a_few_bytes_could_make_endless_are_not_decoded() -> None:
    reader = record(field("v", "int"))
    for writer in (LIST, record(field("v", "int"), field("n", {"type": "array", "items": "null"}))):
        with pytest.raises(ColumnTypeError, match=r"contains itself|take no bytes"):
            decoder(root(reader), root(writer), column_type(root(reader)))


def test_types_that_use_others_twice_are_no_more_columns_than_the_limit() -> None:
    """Each of 60 records has two fields of the next: 2^60 columns."""
    kinds: Any = "int"
    for number in range(60):
        kinds = record(field("a", kinds), field("b", f"R{number - 1}" if number else "int"), name=f"R{number}")
    check_bounded(root(kinds), "R")
    with pytest.raises(ColumnTypeError, match=f"more than {COLUMNS_MAX} columns"):
        column_type(root(kinds))
    assert field_types(root(kinds)) == {}
    wide = record(*(field(f"f{each}", "int") for each in range(COLUMNS_MAX - 1)))
    assert column_type(root(wide)).num_fields == COLUMNS_MAX - 1


def test_a_chain_of_types_is_only_so_deep() -> None:
    chain = [record(field("v", "int"), name="R0")]
    chain += [record(field("v", f"R{number}"), name=f"R{number + 1}") for number in range(5000)]
    known = parse(json.dumps(chain)).names
    deep = parse(json.dumps(record(field("v", "R5000"), name="Deep")), known).root
    for refused in (check_bounded, lambda kind, _: column_type(kind)):
        with pytest.raises(ColumnTypeError, match="nested more than 100 deep"):
            refused(deep, "R")
