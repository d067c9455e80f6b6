"""JSON Schema: the published rules of evolution, as cases; and what is no schema.

Source: Confluent's documentation of Schema Registry, "Formats, Serializers, and Deserializers", JSON Schema (open and closed
content models, sums, defaults); what each keyword accepts: JSON Schema Validation, draft 7. The second source judges the cases:
by the validator of others (`jsonschema`), all values of the old schema are values of the new one, or one is not.
"""

from itertools import product
from typing import Any

import pytest
from jsonschema import Draft7Validator

from braidlog.registry.errors import RegistryError
from braidlog.registry.json_schema.json_compatibility import misfits
from braidlog.registry.schemas import JSON, Schema, read


def obj(closed: Any = None, required: Any = (), **properties: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": properties}
    if closed is not None:
        made["additionalProperties"] = closed
    return {**made, "required": list(required)} if required else made


TEXT, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}

READ = [  # new, old
    (NUMBER, INTEGER),
    ({"type": ["string", "null"]}, TEXT),
    ({}, TEXT),
    (True, TEXT),
    (TEXT, False),
    ({**TEXT, "title": "a"}, {**TEXT, "description": "b"}),
    ({**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 4}),
    (TEXT, {**TEXT, "maxLength": 4}),
    ({**NUMBER, "minimum": 1}, {**NUMBER, "minimum": 2}),
    ({**NUMBER, "multipleOf": 2}, {**NUMBER, "multipleOf": 4}),
    (TEXT, {**TEXT, "pattern": "a"}),
    ({"enum": ["a", "b"]}, {"enum": ["a"]}),
    (TEXT, {**TEXT, "enum": ["a"]}),
    ({"enum": ["a", "b"]}, {"const": "a"}),
    # a closed model takes new properties, an open one loses old ones
    (obj(False, a=TEXT, b=TEXT), obj(False, a=TEXT)),
    (obj(a=TEXT), obj(a=TEXT, b=TEXT)),
    (obj(a=TEXT, b={}), obj(a=TEXT)),
    (obj(TEXT, a=TEXT, b=TEXT), obj(TEXT, a=TEXT)),
    (obj(TEXT, a=TEXT), obj(TEXT, a=TEXT, b=TEXT)),
    (obj(a=TEXT), obj(False, a=TEXT)),
    (obj(a=TEXT), obj(required=["a"], a=TEXT)),
    (obj(required=["a"], a={**TEXT, "default": ""}), obj(a={**TEXT, "default": ""})),
    (obj(False, ["b"], a=TEXT, b={**TEXT, "default": "x"}), obj(False, a=TEXT)),
    ({"type": "array", "items": NUMBER}, {"type": "array", "items": INTEGER}),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}),
    ({"oneOf": [TEXT, NUMBER]}, {"oneOf": [TEXT]}),
    ({"oneOf": [TEXT, NUMBER]}, TEXT),
    ({"anyOf": [TEXT, NUMBER]}, {"oneOf": [TEXT, NUMBER]}),
    ({"allOf": [obj(a=TEXT)]}, {"allOf": [obj(a=TEXT), obj(b=TEXT)]}),
    ({"$ref": "#/definitions/t", "definitions": {"t": NUMBER}}, {"$ref": "#/$defs/t", "$defs": {"t": INTEGER}}),
    ({"dependencies": {"a": ["b"]}}, {"dependencies": {"a": ["b", "c"]}}),
]
NOT_READ = [
    (INTEGER, NUMBER),
    (TEXT, {"type": ["string", "null"]}),
    (TEXT, NUMBER),
    (TEXT, {}),
    (False, TEXT),
    ({**TEXT, "maxLength": 3}, {**TEXT, "maxLength": 4}),
    ({**TEXT, "maxLength": 3}, TEXT),
    ({**NUMBER, "minimum": 3}, {**NUMBER, "minimum": 2}),
    ({**NUMBER, "multipleOf": 3}, {**NUMBER, "multipleOf": 4}),
    ({**TEXT, "pattern": "a"}, TEXT),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}),
    ({**TEXT, "enum": ["a"]}, TEXT),
    (obj(a=TEXT, b=TEXT), obj(a=TEXT)),
    (obj(False, a=TEXT), obj(False, a=TEXT, b=TEXT)),
    (obj(NUMBER, a=TEXT, b=TEXT), obj(NUMBER, a=TEXT)),
    (obj(NUMBER, a=TEXT), obj(NUMBER, a=TEXT, b=TEXT)),
    (obj(False, a=TEXT), obj(a=TEXT)),
    (obj(required=["a"], a=TEXT), obj(a=TEXT)),
    (obj(False, ["b"], a=TEXT, b=TEXT), obj(False, a=TEXT)),
    (obj(a=obj(b=TEXT)), obj(a=obj(b=NUMBER))),
    ({"type": "array", "items": INTEGER}, {"type": "array", "items": NUMBER}),
    ({"type": "array", "uniqueItems": True}, {"type": "array"}),
    ({"oneOf": [TEXT]}, {"oneOf": [TEXT, NUMBER]}),
    ({"allOf": [obj(a=TEXT), obj(b=TEXT)]}, {"allOf": [obj(a=TEXT)]}),
    ({"dependencies": {"a": ["b", "c"]}}, {"dependencies": {"a": ["b"]}}),
]


@pytest.mark.parametrize(("new", "old"), READ, ids=repr)
def test_it_reads(new: Any, old: Any) -> None:
    assert misfits(new, old) == []


@pytest.mark.parametrize(("new", "old"), NOT_READ, ids=repr)
def test_it_does_not_read(new: Any, old: Any) -> None:
    assert misfits(new, old)


SINGLE = [None, True, 0, 1, 2, 3, 4, 6, 12, 1.5, -1, "", "a", "b", "x", "abc", "abcd", "abcde", "abcdef"]
VALUES = [
    *SINGLE,
    *([*each] for each in product(("a", 1, 1.5), repeat=2)),
    [],
    *(
        {name: value for name, value in zip("abc", each, strict=True) if value is not None}
        for each in product((None, "x", 1), repeat=3)
    ),
    {"a": {"b": "x"}},
    {"a": {"b": 1}},
]
FILLED_IN = [(new, old) for new, old in READ if "default" in repr(new)]
"""By a default: the rule is about readers that fill it in, a validator does not."""


@pytest.mark.parametrize(("new", "old"), [each for each in READ if each not in FILLED_IN], ids=repr)
def test_a_validator_of_others_takes_all_values_of_what_is_read(new: Any, old: Any) -> None:
    reads, wrote = Draft7Validator(new), Draft7Validator(old)
    assert [value for value in VALUES if wrote.is_valid(value) and not reads.is_valid(value)] == []


@pytest.mark.parametrize(("new", "old"), [*NOT_READ, *FILLED_IN], ids=repr)
def test_a_validator_of_others_refuses_a_value_of_what_is_not_read(new: Any, old: Any) -> None:
    reads, wrote = Draft7Validator(new), Draft7Validator(old)
    assert [value for value in VALUES if wrote.is_valid(value) and not reads.is_valid(value)]


def test_a_schema_that_contains_itself_is_compared() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "v": INTEGER}}
    wider = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "v": NUMBER}}
    assert misfits(wider, tree) == []
    assert misfits(tree, wider)


def test_what_is_no_schema_is_refused() -> None:
    for wrong in ("{", "7", '{"type": "text"}', '{"properties": []}', '{"required": "a"}', '{"minimum": "1"}'):
        with pytest.raises(Exception, match="Invalid schema"):
            read(Schema(wrong, JSON), {})


def test_branches_that_stay_are_found_in_any_order_and_pairs_are_bounded() -> None:
    objects = [{"type": "object", "properties": {f"p{each}": {"type": "string"}}} for each in range(600)]
    others = [{"type": "object", "properties": {f"p{each}": {"type": "integer"}}} for each in range(600)]
    for kind in ("anyOf", "oneOf", "allOf"):
        assert misfits({kind: objects[::-1]}, {kind: objects}) == []
    with pytest.raises(RegistryError, match="takes more than 100000 pairs of types; use fewer branches"):
        misfits({"anyOf": others}, {"anyOf": objects})
