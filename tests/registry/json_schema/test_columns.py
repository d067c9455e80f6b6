"""Which columns a JSON Schema describes."""

from typing import Any

import pyarrow as pa
import pytest

from braidlog.registry.errors import ColumnTypeError
from braidlog.registry.json_schema.columns import column_type


def of(fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, **more}


def test_types() -> None:
    document = of(
        {
            "id": {"type": "integer"},
            "price": {"type": ["null", "number"]},
            "name": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            "at": {"$ref": "place.json#/definitions/p"},
        },
        **{"$defs": {"tag": of({"ok": {"type": "boolean"}})}},
    )
    other = {"definitions": {"p": of({"x": {"$ref": "#/definitions/n"}}), "n": {"type": "number"}}}
    made = column_type(document, {"place.json": other})
    tag = pa.struct([("ok", pa.bool_())])
    assert made == pa.struct(
        [
            ("id", pa.int64()),
            ("price", pa.float64()),
            ("name", pa.string()),
            ("tags", pa.list_(pa.field("element", tag))),
            ("at", pa.struct([("x", pa.float64())])),
        ]
    )
    wanted = pa.struct([("id", pa.int64())])
    assert column_type(of({"id": {"type": "integer"}, "odd": True}), {}, wanted) == wanted


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (of({"a": {"type": ["string", "integer"]}}), "value.a: several types"),
        (of({"a": {"type": "object"}}), "value.a: type 'object' without properties"),
        (of({"a": {}}), "value.a: type 'any'"),
        (of({"a": True}), "value.a: it has no type"),
        (of({"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}), "value.a: anyOf of several"),
        (of({"a": {"$ref": "#/nowhere"}}), "does not exist"),
        (of({"a": {"$ref": "elsewhere.json"}}), "does not exist"),
        (of({"a": {"$ref": "#"}}), "in itself"),
    ],
)
def test_what_is_no_column(document: Any, said: str) -> None:
    with pytest.raises(ColumnTypeError, match=said):
        column_type(document, {})


def test_references_to_references_are_no_more_columns_than_the_limit() -> None:
    """Each of 24 definitions has two fields of the next: 2^24 columns."""
    defs: dict[str, Any] = {"d0": {"type": "integer"}}
    for number in range(24):
        reference = {"$ref": f"#/$defs/d{number}"}
        defs[f"d{number + 1}"] = of({"a": reference, "b": reference})
    with pytest.raises(ColumnTypeError, match="more than 10000 columns"):
        column_type({"$ref": "#/$defs/d24", "$defs": defs}, {})
