"""Parses Avro schemas: JSON text → a tree of types and the canonical text.

Does not handle: compatibility (`avro_compatibility.py`), records. A name is defined once, and before it is used. A tree
may be cyclic, because a type may contain itself. Accepted schemas have a bounded depth.
"""

import json
import re
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from braidlog.registry.errors import invalid

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
DEPTH_MAX: Final = 100
CHECKS_MAX: Final = 200_000
"""The limit of checks of one schema's defaults."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FIRST: Final = ("type", "name", "namespace", "doc", "fields", "symbols", "size", "items", "values")
_FIELD_FIRST: Final = ("name", "type", "doc", "default")
_INTEGERS: Final = {"int": 2**31, "long": 2**63}


class Field:
    __slots__ = ("aliases", "default", "has_default", "name", "type")

    def __init__(self, name: str, kind: "Type", declared: Mapping[str, Any]) -> None:
        self.name = name
        self.type = kind
        self.aliases: tuple[str, ...] = tuple(declared.get("aliases", ()))
        self.has_default = "default" in declared
        self.default: Any = declared.get("default")


class Type:
    """A type. `kind` is the specification's word; other attributes depend on the kind."""

    __slots__ = ("aliases", "branches", "default", "fields", "items", "kind", "logical", "name", "size", "symbols")

    def __init__(self, kind: str, name: str = "") -> None:
        self.kind = kind
        self.name = name
        """With its namespace; "" if it has none."""
        self.aliases: tuple[str, ...] = ()
        self.fields: list[Field] = []
        self.items: Type | None = None
        self.branches: list[Type] = []
        self.symbols: tuple[str, ...] = ()
        self.default: str | None = None
        self.size = 0
        self.logical: Mapping[str, Any] | None = None
        """The attributes of a logical type, as declared."""

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2] or self.kind


class Avro:
    """A parsed schema."""

    def __init__(self, root: Type, canonical: str, names: Mapping[str, Type]) -> None:
        self.root = root
        self.canonical = canonical
        self.names = names


def parse(text: str, known: Mapping[str, Type] | None = None) -> Avro:
    """Parse a schema. `known`: types defined by other schemas, by full name. Raises INVALID_SCHEMA."""
    try:
        declared = json.loads(text)
    except (ValueError, RecursionError):
        if text.strip() not in PRIMITIVES:  # Avro's own tools write a primitive type as a bare word
            raise invalid("this is not JSON") from None
        declared = text.strip()
    reader = _Reader(dict(known or {}))
    root, shown = reader.read(declared, "", 0)
    return Avro(root, _text(shown), reader.names)


def _text(shown: object) -> str:
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


class _Reader:
    """Reads a type and writes it in canonical order in one pass."""

    def __init__(self, names: dict[str, Type]) -> None:
        self.names = names
        self._checks = count()

    def read(self, declared: Any, space: str, depth: int) -> tuple[Type, Any]:  # noqa: ANN401, C901 - JSON, all of it
        if depth > DEPTH_MAX:
            raise invalid(f"types are nested more than {DEPTH_MAX} deep")
        if isinstance(declared, str):
            return self._name(declared, space)
        if isinstance(declared, list):
            return self._union(declared, space, depth)
        if not isinstance(declared, dict) or "type" not in declared:
            raise invalid(f"not a type: {_text(declared)[:80]}")
        kind = declared["type"]
        if not isinstance(kind, str):
            # {"type": {...}}: only the inner type counts.
            return self.read(kind, space, depth + 1)
        if kind in NAMED:
            return self._named(kind, declared, space, depth)
        if kind in ("array", "map"):
            return self._collection(kind, declared, space, depth)
        kind_read, shown = self._name(kind, space)
        if kind_read.kind in PRIMITIVES:
            kind_read = Type(kind_read.kind)
            if "logicalType" in declared:
                kind_read.logical = declared
            if len(declared) > 1:
                return kind_read, _ordered(declared, {})
        return kind_read, shown

    def _name(self, name: str, space: str) -> tuple[Type, str]:
        if name in PRIMITIVES:
            return Type(name), name
        full = name if "." in name or not space else f"{space}.{name}"
        known = self.names.get(full) or self.names.get(name)
        if known is None:
            raise invalid(f"unknown type {full!r}; define a type before it is used, or add a reference")
        own_space, _, short = known.name.rpartition(".")
        return known, short if own_space == space else known.name

    def _union(self, declared: list[Any], space: str, depth: int) -> tuple[Type, Any]:
        union, shown, seen = Type("union"), [], set()
        for each in declared:
            branch, text = self.read(each, space, depth + 1)
            if branch.kind == "union":
                raise invalid("a union directly in a union")
            if (branch.name or branch.kind) in seen:
                raise invalid(f"two branches of a union are {branch.name or branch.kind!r}")
            seen.add(branch.name or branch.kind)
            union.branches.append(branch)
            shown.append(text)
        return union, shown

    def _collection(self, kind: str, declared: dict[str, Any], space: str, depth: int) -> tuple[Type, Any]:
        inner = "items" if kind == "array" else "values"
        if inner not in declared:
            raise invalid(f"{kind} without {inner}")
        made = Type(kind)
        made.items, shown = self.read(declared[inner], space, depth + 1)
        return made, _ordered(declared, {inner: shown})

    def _named(self, kind: str, declared: dict[str, Any], space: str, depth: int) -> tuple[Type, Any]:
        full, own_space = _full_name(declared, space)
        if full in self.names:
            raise invalid(f"{full!r} is defined twice")
        made = self.names[full] = Type("record" if kind == "error" else kind, full)
        aliases = declared.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            raise invalid(f"aliases of {full!r} must be a list of names")
        made.aliases = tuple(each if "." in each or not own_space else f"{own_space}.{each}" for each in aliases)
        shown: dict[str, Any] = {"name": full.rpartition(".")[2]}
        if own_space and own_space != space:
            shown["namespace"] = own_space
        if made.kind == "record":
            shown["fields"] = self._fields(made, declared, own_space, depth)
        elif kind == "enum":
            _read_enum(made, declared)
        else:
            _read_fixed(made, declared)
        return made, _ordered({k: v for k, v in declared.items() if k != "namespace"}, shown)

    def _fields(self, made: Type, declared: dict[str, Any], space: str, depth: int) -> list[Any]:
        listed, shown, names = declared.get("fields"), [], set()
        if not isinstance(listed, list):
            raise invalid(f"record {made.name!r} without fields")
        for each in listed:
            if not isinstance(each, dict) or "type" not in each or not _is_name(each.get("name")):
                raise invalid(f"a field of {made.name!r} needs a name and a type: {_text(each)[:80]}")
            if each["name"] in names:
                raise invalid(f"field {each['name']!r} of {made.name!r} occurs twice")
            names.add(each["name"])
            kind, text = self.read(each["type"], space, depth + 1)
            field = Field(each["name"], kind, each)
            if field.has_default and not fits(kind, field.default, self._checks):
                raise invalid(
                    f"the default of field {field.name!r}, {_text(field.default)[:80]}, is not a {kind.short_name}"
                )
            made.fields.append(field)
            shown.append(_ordered(each, {"type": text}, _FIELD_FIRST))
        return shown


def _full_name(declared: dict[str, Any], space: str) -> tuple[str, str]:
    name, given = declared.get("name"), declared.get("namespace")
    if not isinstance(name, str) or not all(map(_is_name, name.split("."))):
        raise invalid(f"invalid name {name!r}; use letters, digits and _, not a digit first")
    if "." in name:
        return name, name.rpartition(".")[0]
    own = given if isinstance(given, str) else space
    if own and not all(map(_is_name, own.split("."))):
        raise invalid(f"invalid namespace {own!r}")
    return f"{own}.{name}" if own else name, own


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _read_enum(made: Type, declared: dict[str, Any]) -> None:
    symbols = declared.get("symbols")
    if not isinstance(symbols, list) or not all(map(_is_name, symbols)) or len({*symbols}) != len(symbols):
        raise invalid(f"enum {made.name!r} needs symbols: unique names")
    made.symbols = tuple(symbols)
    made.default = declared.get("default")
    if made.default is not None and made.default not in made.symbols:
        raise invalid(f"the default of enum {made.name!r} is not one of its symbols")


def _read_fixed(made: Type, declared: dict[str, Any]) -> None:
    size = declared.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise invalid(f"fixed {made.name!r} needs a size")
    made.size = size
    made.logical = declared if "logicalType" in declared else None


def _ordered(declared: dict[str, Any], shown: dict[str, Any], first: tuple[str, ...] = _FIRST) -> dict[str, Any]:
    """Return the declaration with the values in `shown` replaced, and known attributes first."""
    every = {**declared, **shown}
    return {name: every[name] for name in first if name in every} | {
        name: value for name, value in every.items() if name not in first
    }


def fits(kind: Type, value: Any, checks: "count[int] | None" = None) -> bool:  # noqa: ANN401, C901, PLR0911 - JSON, one answer a kind
    """Return whether a default is a value of its type; for a union, of any branch (since specification 1.12; before,
    of the first).

    `checks` counts the values of one schema: for nested records with defaults they grow exponentially with depth.
    """
    checks = checks or count()
    if next(checks) >= CHECKS_MAX:
        raise invalid(f"its defaults take more than {CHECKS_MAX} checks; use smaller defaults")
    match kind.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            limit = _INTEGERS[kind.kind]
            return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "union":
            return any(fits(branch, value, checks) for branch in kind.branches)
        case "array":
            assert kind.items is not None
            inner = kind.items
            return isinstance(value, list) and all(fits(inner, each, checks) for each in value)
        case "map":
            assert kind.items is not None
            inner = kind.items
            return isinstance(value, dict) and all(fits(inner, each, checks) for each in value.values())
        case "record":
            return isinstance(value, dict) and all(
                fits(field.type, value.get(field.name, field.default), checks)
                if field.name in value or field.has_default
                else False
                for field in kind.fields
            )
        case "enum":
            return value in kind.symbols
        case _:
            return isinstance(value, str)
