"""Checks whether documents of one JSON Schema are valid in another, by Confluent's published rules of evolution.

The result is a list of incompatibilities, empty if there are none. Keywords that the rules do not mention (`if`,
`format`, `contentEncoding`) count as unchanged. Does not handle: validating documents.

An object's content model is *open* (any other property is allowed), *closed* (`additionalProperties: false`), or
*partially open* (others must match `patternProperties` or a schema for additional ones).
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import re2

from braidlog.registry.errors import PAIRS_MAX, too_complex

Schema = Any
"""JSON: an object, or true or false."""

DEPTH_MAX: Final = 100
_LIMITS: Final = (
    # keyword, whether a larger value is wider
    ("maxLength", True),
    ("minLength", False),
    ("maximum", True),
    ("minimum", False),
    ("exclusiveMaximum", True),
    ("exclusiveMinimum", False),
    ("maxProperties", True),
    ("minProperties", False),
    ("maxItems", True),
    ("minItems", False),
)
_NUMBERS: Final = frozenset({"integer", "number"})


def misfits(reader: Schema, writer: Schema, find: Callable[[str], Schema | None] = lambda _: None) -> list[str]:
    """Return the incompatibilities. `find`: returns another document's schema by the address in a `$ref`."""
    return _Comparison(reader, writer, find).compare(reader, writer, "#", 0)


class _Comparison:
    def __init__(self, reader: Schema, writer: Schema, find: Callable[[str], Schema | None]) -> None:
        self._roots = (reader, writer)
        self._find = find
        self._seen: set[tuple[int, int]] = set()
        self._pairs = 0

    def _resolved(self, schema: Schema, root: Schema) -> Schema:
        """Follow a `$ref` to its end."""
        for _ in range(DEPTH_MAX):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            address, _, pointer = schema["$ref"].partition("#")
            document = root if not address else self._find(address)
            target = _at(document, pointer)
            if target is None:
                return schema
            schema = target
        return schema

    def compare(self, reader: Schema, writer: Schema, place: str, depth: int) -> list[str]:
        self._pairs += 1
        if self._pairs > PAIRS_MAX:
            raise too_complex()
        reader, writer = self._resolved(reader, self._roots[0]), self._resolved(writer, self._roots[1])
        pair = id(reader), id(writer)
        if reader == writer or pair in self._seen or _is_anything(reader) or writer is False:
            return []
        if depth > DEPTH_MAX:
            return [f"{place}: nested more than {DEPTH_MAX} deep"]
        self._seen.add(pair)
        if reader is False or _is_anything(writer):
            return [f"{place}: TYPE_NARROWED: what could be anything is restricted"]
        combined = self._combined(reader, writer, place, depth)
        if combined is not None:
            return combined
        faults = _types(reader, writer, place) + _values(reader, writer, place) + _limits(reader, writer, place)
        return faults + self._object(reader, writer, place, depth) + self._array(reader, writer, place, depth)

    # -- allOf, anyOf, oneOf, not --------------------------------------------------------------------------------

    def _combined(self, reader: Schema, writer: Schema, place: str, depth: int) -> list[str] | None:
        """Compare combined schemas; None if neither is combined."""
        ours, theirs = _combination(reader), _combination(writer)
        if ours is None and theirs is None:
            if "not" in reader or "not" in writer:
                return self._negated(reader, writer, place, depth)
            return None
        if ours is None:
            return self._from_combined(reader, theirs, place, depth)
        if theirs is None:
            fits = [not self.compare(each, writer, place, depth + 1) for each in ours[1]]
            if all(fits) if ours[0] == "allOf" else any(fits):
                return []
            return [f"{place}: TYPE_CHANGED: the earlier schema is none of {ours[0]}"]
        return self._between(ours, theirs, place, depth)

    def _from_combined(self, reader: Schema, theirs: Any, place: str, depth: int) -> list[str]:  # noqa: ANN401
        kind, branches = theirs
        fits = [not self.compare(reader, branch, place, depth + 1) for branch in branches]
        if any(fits) if kind == "allOf" else all(fits):
            return []
        return [f"{place}: SUM_TYPE_NARROWED: not everything that {kind} allowed is allowed"]

    def _between(self, ours: Any, theirs: Any, place: str, depth: int) -> list[str]:  # noqa: ANN401
        (kind, mine), (kind_before, before) = ours, theirs
        if kind not in (kind_before, "anyOf") and len(before) > 1:
            return [f"{place}: COMBINED_TYPE_CHANGED: {kind_before} became {kind}"]
        if kind == "allOf":  # each part of the new schema must be implied by a part of the old one
            lacking = [
                each
                for each in mine
                if not _has(before, each) and all(self.compare(each, one, place, depth + 1) for one in before)
            ]
            return [f"{place}: PRODUCT_TYPE_EXTENDED"] if lacking else []
        lacking = [
            one
            for one in before
            if not _has(mine, one) and all(self.compare(each, one, place, depth + 1) for each in mine)
        ]
        return [f"{place}: SUM_TYPE_NARROWED"] if lacking else []

    def _negated(self, reader: Schema, writer: Schema, place: str, depth: int) -> list[str]:
        if "not" not in reader:
            return []
        if "not" not in writer or self.compare(writer["not"], reader["not"], f"{place}/not", depth + 1):
            return [f"{place}: NOT_TYPE_EXTENDED"]
        return []

    # -- objects -------------------------------------------------------------------------------------------------

    def _object(self, reader: Schema, writer: Schema, place: str, depth: int) -> list[str]:
        ours, theirs = reader.get("properties", {}), writer.get("properties", {})
        faults = []
        for name in theirs.keys() & ours.keys():
            faults += self.compare(ours[name], theirs[name], f"{place}/properties/{name}", depth + 1)
        required, required_before = _names(reader, "required"), _names(writer, "required")
        for name in sorted(ours.keys() - theirs.keys()):
            faults += self._added(name, ours[name], writer, f"{place}/properties/{name}", depth)
            if name in required and not _has_default(ours[name]):
                faults.append(f"{place}/properties/{name}: REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL")
        for name in sorted(theirs.keys() - ours.keys()):
            faults += self._removed(name, theirs[name], reader, f"{place}/properties/{name}", depth)
        for name in sorted((required - required_before) & theirs.keys()):
            if not _has_default(ours.get(name, theirs[name])):
                faults.append(f"{place}/required/{name}: REQUIRED_ATTRIBUTE_ADDED")
        return faults + self._others(reader, writer, place, depth) + self._dependencies(reader, writer, place, depth)

    def _added(self, name: str, added: Schema, writer: Schema, place: str, depth: int) -> list[str]:
        """Check that a new property does not forbid earlier values under its name."""
        if _is_anything(added):
            return []
        before = _covering(name, writer)
        if before is False:
            return []
        if before is True or before == {}:
            return [f"{place}: PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]
        if self.compare(added, before, place, depth + 1):
            return [f"{place}: PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"]
        return []

    def _removed(self, name: str, removed: Schema, reader: Schema, place: str, depth: int) -> list[str]:
        """Check that values of a removed property are still allowed under its name."""
        now = _covering(name, reader)
        if removed is False or _is_anything(now):
            return []
        if now is False:
            return [f"{place}: PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]
        if self.compare(now, removed, place, depth + 1):
            return [f"{place}: PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"]
        return []

    def _others(self, reader: Schema, writer: Schema, place: str, depth: int) -> list[str]:
        ours, theirs = reader.get("additionalProperties", True), writer.get("additionalProperties", True)
        if _is_anything(ours) or theirs is False:
            return []
        if ours is False:
            return [f"{place}: ADDITIONAL_PROPERTIES_REMOVED"]
        if _is_anything(theirs):
            return [f"{place}: ADDITIONAL_PROPERTIES_NARROWED"]
        return self.compare(ours, theirs, f"{place}/additionalProperties", depth + 1)

    def _dependencies(self, reader: Schema, writer: Schema, place: str, depth: int) -> list[str]:
        ours, theirs = _dependent(reader), _dependent(writer)
        faults = []
        for name, mine in ours.items():
            before = theirs.get(name)
            if isinstance(mine, list):
                if not isinstance(before, list) or not set(mine) <= set(before):
                    faults.append(f"{place}/dependencies/{name}: DEPENDENCY_ARRAY_EXTENDED")
            elif before is None or isinstance(before, list):
                faults.append(f"{place}/dependencies/{name}: DEPENDENCY_SCHEMA_ADDED")
            else:
                faults += self.compare(mine, before, f"{place}/dependencies/{name}", depth + 1)
        return faults

    # -- arrays --------------------------------------------------------------------------------------------------

    def _array(self, reader: Schema, writer: Schema, place: str, depth: int) -> list[str]:
        faults = []
        if reader.get("uniqueItems") and not writer.get("uniqueItems"):
            faults.append(f"{place}: UNIQUE_ITEMS_ADDED")
        (ours, rest), (theirs, rest_before) = _items(reader), _items(writer)
        for at in range(max(len(ours), len(theirs))):
            mine = ours[at] if at < len(ours) else rest
            before = theirs[at] if at < len(theirs) else rest_before
            faults += self.compare(mine, before, f"{place}/items/{at}", depth + 1)
        return faults + self.compare(rest, rest_before, f"{place}/items", depth + 1)


def _has(branches: list[Schema], schema: Schema) -> bool:
    """Return whether an equal branch exists, which needs no comparison; targets of equal `$ref`s may differ."""
    return isinstance(schema, dict) and "$ref" not in schema and schema in branches


def _at(document: Schema, pointer: str) -> Schema | None:
    if document is None:
        return None
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list) and name.isdigit() and int(name) < len(document):
            document = document[int(name)]
        elif isinstance(document, dict) and name in document:
            document = document[name]
        else:
            return None
    return document


_SAYS_NOTHING: Final = frozenset({"$id", "id", "$schema", "title", "description", "default", "examples", "$comment"})


def _is_anything(schema: Schema) -> bool:
    return schema is True or (isinstance(schema, dict) and not schema.keys() - _SAYS_NOTHING)


def _combination(schema: Schema) -> tuple[str, list[Schema]] | None:
    for kind in ("allOf", "anyOf", "oneOf"):
        if isinstance(schema.get(kind), list):
            rest = {name: value for name, value in schema.items() if name != kind and name not in _SAYS_NOTHING}
            branches = (
                [*schema[kind], rest] if kind == "allOf" and rest.keys() - {"definitions", "$defs"} else schema[kind]
            )
            return kind, branches
    return None


def _kinds(schema: Schema) -> set[str] | None:
    """Return the allowed types; None: any."""
    kinds = schema.get("type")
    if kinds is None and ("enum" in schema or "const" in schema):
        return None
    return None if kinds is None else {kinds} if isinstance(kinds, str) else set(kinds)


def _types(reader: Schema, writer: Schema, place: str) -> list[str]:
    ours, theirs = _kinds(reader), _kinds(writer)
    if ours is None or (theirs is not None and theirs <= ours | ({"integer"} if "number" in ours else set())):
        return []
    if theirs is None:
        return [] if "enum" in writer or "const" in writer else [f"{place}: TYPE_NARROWED"]
    kind = "TYPE_NARROWED" if ours & theirs or (ours | theirs) <= _NUMBERS else "TYPE_CHANGED"
    return [f"{place}: {kind}: {', '.join(sorted(theirs))} became {', '.join(sorted(ours))}"]


def _values(reader: Schema, writer: Schema, place: str) -> list[str]:
    ours, theirs = _enumerated(reader), _enumerated(writer)
    faults = []
    if ours is not None:
        if theirs is None:
            faults.append(f"{place}: ENUM_ARRAY_ADDED")
        elif any(value not in ours for value in theirs):
            faults.append(f"{place}: ENUM_ARRAY_NARROWED")
    if "pattern" in reader and reader["pattern"] != writer.get("pattern"):
        faults.append(f"{place}: PATTERN_{'CHANGED' if 'pattern' in writer else 'ADDED'}")
    ours_of, theirs_of = reader.get("multipleOf"), writer.get("multipleOf")
    if ours_of is not None and ours_of != theirs_of and (theirs_of is None or theirs_of % ours_of):
        faults.append(f"{place}: MULTIPLE_OF_{'ADDED' if theirs_of is None else 'CHANGED'}")
    return faults


def _enumerated(schema: Schema) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _limits(reader: Schema, writer: Schema, place: str) -> list[str]:
    faults = []
    for keyword, more_is_wider in _LIMITS:
        ours, theirs = reader.get(keyword), writer.get(keyword)
        if ours is None or ours is False or ours == theirs:
            continue
        if theirs is None or theirs is False:
            faults.append(f"{place}: {keyword} added")
        elif (ours < theirs) if more_is_wider else (ours > theirs):
            faults.append(f"{place}: {keyword} {'decreased' if more_is_wider else 'increased'}")
    return faults


def _names(schema: Schema, keyword: str) -> set[str]:
    return {each for each in schema.get(keyword, ()) if isinstance(each, str)}


def _has_default(schema: Schema) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _covering(name: str, schema: Schema) -> Schema:
    """Return the schema for a name that is not among the properties."""
    for pattern, found in schema.get("patternProperties", {}).items():
        if _matches(pattern, name):
            return found
    return schema.get("additionalProperties", True)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re2.search(pattern, name[:256]) is not None
    except re2.error:
        return False


def _dependent(schema: Schema) -> dict[str, Any]:
    dependent: dict[str, Any] = {}
    for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        dependent |= schema.get(keyword, {})
    return dependent


def _items(schema: Schema) -> tuple[list[Schema], Schema]:
    """Return the schemas of the first items, and that of the rest."""
    items = schema.get("items", True)
    if "prefixItems" in schema:
        return schema["prefixItems"], items
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    return [], items


_LISTS: Final = frozenset({"required", "enum", "allOf", "anyOf", "oneOf", "prefixItems"})
_OBJECTS: Final = frozenset({"properties", "patternProperties", "definitions", "$defs", "dependencies"})


def faults(schema: Schema, place: str = "#", depth: int = 0) -> list[str]:
    """Return what makes a schema invalid: keywords with impossible values."""
    if isinstance(schema, bool):
        return []
    if not isinstance(schema, dict):
        return [f"{place} is neither an object nor true or false"]
    if depth > DEPTH_MAX:
        return [f"{place} is nested more than {DEPTH_MAX} deep"]
    problems = []
    for name, value in schema.items():
        where = f"{place}/{name}"
        if name in _LISTS and not isinstance(value, list):
            problems.append(f"{where} is not a list")
        elif name in _OBJECTS and not isinstance(value, dict):
            problems.append(f"{where} is not an object")
        elif name == "type":
            problems += _type_faults(value, where)
        elif any(name == keyword for keyword, _ in _LIMITS) and not isinstance(value, int | float):
            problems.append(f"{where} is not a number")
        for step, inner in _inner(name, value):
            problems += faults(inner, f"{where}{step}", depth + 1)
    return problems


_TYPES: Final = frozenset({"null", "boolean", "object", "array", "string", *_NUMBERS})


def _type_faults(value: object, where: str) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    return [f"{where}: unknown type {each!r}" for each in listed if not isinstance(each, str) or each not in _TYPES]


def _inner(name: str, value: Any) -> Iterable[tuple[str, Schema]]:  # noqa: ANN401 - JSON
    """The schemas in a keyword's value."""
    if name in _OBJECTS and isinstance(value, dict):
        return [(f"/{key}", each) for key, each in value.items() if not isinstance(each, list)]
    if name in ("allOf", "anyOf", "oneOf", "prefixItems") and isinstance(value, list):
        return [(f"/{at}", each) for at, each in enumerate(value)]
    if name == "items" and isinstance(value, list):
        return [(f"/{at}", each) for at, each in enumerate(value)]
    return [("", value)] if name in ("items", "not", "additionalProperties", "additionalItems") else []
