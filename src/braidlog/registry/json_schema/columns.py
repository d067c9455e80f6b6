"""Derives columns from a JSON Schema.

Supports the few keywords that determine a type. Other parts (several types, objects without properties) are refused
by their path, and can be left out. Does not handle: values; the JSON reader reports values that do not fit.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

import pyarrow as pa

from braidlog.registry.errors import ColumnTypeError
from braidlog.registry.value_columns import child, chosen, count_column

DEPTH_MAX: Final = 50
_SCALARS: Final = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}


def column_type(document: Any, references: Mapping[str, Any], target: pa.DataType | None = None) -> pa.DataType:  # noqa: ANN401 - JSON
    """Return the column type of a schema's values. Raises `ColumnTypeError`."""
    return _type(document, _Known(document, references), target, "value", count(), 0)


class _Known:
    """Resolves `$ref`: within the document, or to another one by its name."""

    def __init__(self, document: Any, references: Mapping[str, Any]) -> None:  # noqa: ANN401 - JSON
        self.document = document
        self._references = references

    def find(self, address: str, place: str) -> tuple[Any, "_Known"]:
        name, _, path = address.partition("#")
        known = _Known(self._references[name], self._references) if name in self._references else self
        node = known.document
        for part in (each.replace("~1", "/").replace("~0", "~") for each in path.split("/") if each):
            node = node.get(part) if isinstance(node, dict) else None
        if node is None or (name and known is self):
            raise ColumnTypeError(f"{place}: $ref {address!r} does not exist")
        return node, known


def _type(
    document: Any,  # noqa: ANN401 - JSON
    known: _Known,
    wanted: pa.DataType | None,
    place: str,
    made: "count[int]",
    depth: int,
) -> pa.DataType:
    count_column(made, place, depth)
    if depth > DEPTH_MAX:
        raise ColumnTypeError(f"{place}: nested more than {DEPTH_MAX} deep, or in itself; leave the field out")
    if not isinstance(document, dict):
        raise ColumnTypeError(f"{place}: it has no type; leave the field out")
    if isinstance(document.get("$ref"), str):
        found, where = known.find(document["$ref"], place)
        return _type(found, where, wanted, place, made, depth + 1)
    for word in ("oneOf", "anyOf"):
        if isinstance(document.get(word), list):
            branches = [each for each in document[word] if each != {"type": "null"}]
            if len(branches) != 1:
                raise ColumnTypeError(f"{place}: {word} of several types cannot be a column; leave the field out")
            return _type(branches[0], known, wanted, place, made, depth + 1)
    kind = document.get("type")
    kinds = [each for each in kind if each != "null"] if isinstance(kind, list) else [kind]
    if len(kinds) != 1:
        raise ColumnTypeError(f"{place}: several types cannot be a column; leave the field out")
    return _one_type(kinds[0], document, known, wanted, place, made, depth)


def _one_type(
    kind: object,
    document: dict[str, Any],
    known: _Known,
    wanted: pa.DataType | None,
    place: str,
    made: "count[int]",
    depth: int,
) -> pa.DataType:
    if isinstance(kind, str) and kind in _SCALARS:
        return _SCALARS[kind]
    if kind == "array" and isinstance(document.get("items"), dict):
        item = wanted.value_type if wanted is not None and pa.types.is_list(wanted) else None
        return pa.list_(pa.field("element", _type(document["items"], known, item, f"{place}[]", made, depth + 1)))
    fields = document.get("properties")
    if kind == "object" and isinstance(fields, dict) and fields:
        return pa.struct(
            [
                pa.field(name, _type(fields[name], known, child(wanted, name), f"{place}.{name}", made, depth + 1))
                for name in chosen(list(fields), wanted, place)
            ]
        )
    raise ColumnTypeError(f"{place}: type {kind or 'any'!r} without properties cannot be a column; leave the field out")
