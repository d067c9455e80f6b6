"""Checks whether data of one Avro schema can be read with another, by the specification's rules of schema resolution.

The result is a list of incompatibilities, empty if there are none. Tests compare it with Apache Avro's
`SchemaCompatibility`. Does not handle: which version is the reader (`compatibility.py`).
"""

from collections.abc import Iterator
from typing import Final

from braidlog.registry.avro.schema import NAMED, PRIMITIVES, Field, Type
from braidlog.registry.errors import PAIRS_MAX, too_complex

_PROMOTED: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
"""The other types that each type can read."""
_PROMOTED_TO: Final = {kind: [to for to, kinds in _PROMOTED.items() if kind in kinds] for kind in PRIMITIVES}


class Seen(dict[tuple[int, int], list[str]]):
    """Compared pairs of types; a pair that is still being compared further out counts as compatible."""

    def __init__(self) -> None:
        super().__init__()
        self._branches: dict[int, dict[str, list[Type]]] = {}

    def candidates(self, union: Type, writer: Type) -> Iterator[Type]:
        """Return the branches that may read `writer`: a named type by name or alias, other types by kind."""
        if id(union) not in self._branches:
            branches = self._branches[id(union)] = {}
            for branch in union.branches:
                # Avro names cannot contain a colon.
                is_named = branch.kind in NAMED
                for key in {f":{branch.short_name}", *branch.aliases} if is_named else {branch.kind}:
                    branches.setdefault(key, []).append(branch)
        branches = self._branches[id(union)]
        if writer.kind in NAMED:
            keys: tuple[str, ...] = (f":{writer.short_name}", writer.name)
        else:
            keys = (writer.kind, *_PROMOTED_TO.get(writer.kind, ()))
        return (branch for key in keys for branch in branches.get(key, ()))


def misfits(reader: Type, writer: Type) -> list[str]:
    """Return the incompatibilities. Raises INVALID_SCHEMA if more than `PAIRS_MAX` pairs of types must be compared."""
    return _misfits(reader, writer, "", Seen())


def _misfits(reader: Type, writer: Type, place: str, seen: Seen) -> list[str]:
    pair = id(reader), id(writer)
    if pair not in seen:
        if len(seen) >= PAIRS_MAX:
            raise too_complex()
        seen[pair] = []
        seen[pair] = _compare(reader, writer, place, seen)
    return seen[pair]


def _compare(reader: Type, writer: Type, place: str, seen: Seen) -> list[str]:
    if reader.kind == writer.kind:
        return _same_kind(reader, writer, place, seen)
    if writer.kind == "union":
        return [each for branch in writer.branches for each in _misfits(reader, branch, place, seen)]
    if reader.kind == "union":
        if any(not _misfits(branch, writer, place, seen) for branch in seen.candidates(reader, writer)):
            return []
        return [_misfit("MISSING_UNION_BRANCH", f"reader union lacks writer type {writer.kind}", place)]
    if writer.kind in _PROMOTED.get(reader.kind, ()):
        return []
    return [_misfit("TYPE_MISMATCH", f"reader type {reader.kind} is not the writer's {writer.kind}", place)]


def _same_kind(reader: Type, writer: Type, place: str, seen: Seen) -> list[str]:
    match reader.kind:
        case "array" | "map":
            assert reader.items is not None
            assert writer.items is not None
            inner = "items" if reader.kind == "array" else "values"
            return _misfits(reader.items, writer.items, f"{place}/{inner}", seen)
        case "union":
            return [
                _misfit("MISSING_UNION_BRANCH", f"reader union lacks writer type {branch.kind}", f"{place}/{at}")
                for at, branch in enumerate(writer.branches)
                if _misfits(reader, branch, place, seen)
            ]
        case "fixed" | "enum" | "record":
            return _named(reader, writer, place, seen)
    return []


def _named(reader: Type, writer: Type, place: str, seen: Seen) -> list[str]:
    faults = []
    if reader.short_name != writer.short_name and writer.name not in reader.aliases:
        faults.append(_misfit("NAME_MISMATCH", f"expected {writer.name}", f"{place}/name"))
    if reader.kind == "fixed" and reader.size != writer.size:
        faults.append(_misfit("FIXED_SIZE_MISMATCH", f"expected {writer.size}, found {reader.size}", f"{place}/size"))
    if reader.kind == "enum" and reader.default is None:
        missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
        if missing:
            faults.append(_misfit("MISSING_ENUM_SYMBOLS", f"the reader lacks {', '.join(missing)}", f"{place}/symbols"))
    fields = {each.name: each for each in writer.fields}
    for at, field in enumerate(reader.fields):
        where = f"{place}/fields/{at}"
        theirs = next((fields[name] for name in (field.name, *field.aliases) if name in fields), None)
        if theirs is not None:
            faults += _misfits(field.type, theirs.type, f"{where}/type", seen)
        elif not field.has_default:
            faults.append(_misfit("READER_FIELD_MISSING_DEFAULT_VALUE", f"{field.name}", where))
    return faults


def written(field: Field, writer: Type) -> Field | None:
    """Return the field of the writer's record from which a reader's field is read."""
    names = (field.name, *field.aliases)
    return next((each for name in names for each in writer.fields if each.name == name), None)


def _misfit(kind: str, words: str, place: str) -> str:
    return f"{{errorType:'{kind}', description:'{words}', at:'{place or '/'}'}}"
