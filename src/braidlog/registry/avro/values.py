"""Decodes Avro values to Python objects with fastavro, using the writer's schema.

Does not handle: columns, registries. A value is valid only if it matches its writer's schema to its last byte. A
schema that contains itself is refused, because its values have no maximum depth. Times are returned as encoded
numbers.
"""

import io
from decimal import Decimal
from typing import Any, Final

import fastavro

from braidlog.registry.avro.schema import DEPTH_MAX, NAMED, Field, Type, fits
from braidlog.registry.errors import WHY_CHARS_MAX, ColumnTypeError


def decimal_of(kind: Type) -> tuple[int, int] | None:
    """Return precision and scale; None if it is not a valid decimal: Avro then reads it as bytes."""
    declared = kind.logical or {}
    precision, scale = declared.get("precision"), declared.get("scale", 0)
    is_one = declared.get("logicalType") == "decimal" and kind.kind in ("bytes", "fixed")
    if is_one and isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0:
        return precision, scale
    return None


def default_of(kind: Type, declared: Any) -> Any:  # noqa: ANN401 - JSON in, what fastavro would give out
    """Convert a default in a schema to the value that fastavro would decode."""
    match kind.kind:
        case "union":
            return next(default_of(branch, declared) for branch in kind.branches if fits(branch, declared))
        case "bytes" | "fixed":
            data = declared.encode("latin-1")  # the specification's: code points 0-255 are bytes
            precision = decimal_of(kind)
            return (
                data if precision is None else Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-precision[1])
            )
        case "record":
            given = {field.name: declared.get(field.name, field.default) for field in kind.fields}
            return {field.name: default_of(field.type, given[field.name]) for field in kind.fields}
        case "array":
            assert kind.items is not None
            items = kind.items
            return [default_of(items, each) for each in declared]
        case "map":
            assert kind.items is not None
            items = kind.items
            return {name: default_of(items, each) for name, each in declared.items()}
        case "float" | "double":
            return float(declared)
    return declared


def _shape(kind: Type, defined: set[str]) -> Any:  # noqa: ANN401 - JSON
    """Convert a type to fastavro's schema: times are numbers, which Arrow accepts; decimals stay decimals."""
    if kind.name:
        if kind.name in defined:
            return kind.name
        defined.add(kind.name)
    match kind.kind:
        case "union":
            return [_shape(branch, defined) for branch in kind.branches]
        case "array" | "map":
            assert kind.items is not None
            inner = "items" if kind.kind == "array" else "values"
            return {"type": kind.kind, inner: _shape(kind.items, defined)}
    made: dict[str, Any] = {"type": kind.kind}
    if kind.kind in NAMED:
        made |= {"name": kind.name, "aliases": list(kind.aliases)}
    if kind.kind == "record":
        made["fields"] = [_shape_of_field(field, defined) for field in kind.fields]
    elif kind.kind == "enum":
        made |= {"symbols": list(kind.symbols)} | ({} if kind.default is None else {"default": kind.default})
    elif kind.kind == "fixed":
        made["size"] = kind.size
    precision = decimal_of(kind)
    return (
        made
        if precision is None
        else {**made, "logicalType": "decimal", "precision": precision[0], "scale": precision[1]}
    )


def _shape_of_field(field: Field, defined: set[str]) -> dict[str, Any]:
    made = {"name": field.name, "type": _shape(field.type, defined), "aliases": list(field.aliases)}
    return {**made, "default": default_of(field.type, field.default)} if field.has_default else made


def parsed(kind: Type) -> Any:  # noqa: ANN401 - a schema of fastavro's
    # Defaults are decoded values, not JSON: fastavro must return them unchanged, and not validate them.
    try:
        return fastavro.parse_schema(_shape(kind, set()), _ignore_default_error=True)
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise ColumnTypeError(f"fastavro refuses it: {error}") from None


def check_bounded(kind: Type, place: str) -> None:
    """Raise `ColumnTypeError` for a type of which a few bytes could encode an endless value."""
    _takes_bytes(kind, place, (), {})


def _takes_bytes(kind: Type, place: str, open_types: tuple[int, ...], known: dict[int, bool]) -> bool:
    """Return whether each value takes at least one byte; `known`: types checked before, which others may use many
    times."""
    if id(kind) in open_types:
        raise ColumnTypeError(f"{place}: {kind.name} contains itself")
    if len(open_types) > DEPTH_MAX:
        raise ColumnTypeError(f"{place}: types are nested more than {DEPTH_MAX} deep")
    if id(kind) not in known:
        known[id(kind)] = _looked_at(kind, place, (*open_types, id(kind)), known)
    return known[id(kind)]


def _looked_at(kind: Type, place: str, inside: tuple[int, ...], known: dict[int, bool]) -> bool:
    match kind.kind:
        case "record":
            takes = [_takes_bytes(each.type, f"{place}.{each.name}", inside, known) for each in kind.fields]
            return any(takes)
        case "union":
            for branch in kind.branches:
                _takes_bytes(branch, place, inside, known)
            return True  # the number of the branch takes a byte
        case "array" | "map":
            assert kind.items is not None
            if not _takes_bytes(kind.items, f"{place}[]", inside, known) and kind.kind == "array":
                raise ColumnTypeError(f"{place}: a list of values that take no bytes")
            return True
    return kind.kind != "null" and (kind.kind != "fixed" or kind.size > 0)


_FAULTS: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    fastavro.read.SchemaResolutionError,
)
"""What fastavro raises for bytes that are not a value of a schema."""


def decoded(payloads: list[bytes | None], theirs: Any, ours: Any, errors: list[str | None]) -> list[Any]:  # noqa: ANN401 - fastavro's
    read = fastavro.schemaless_reader
    values: list[Any] = []
    for at, payload in enumerate(payloads):
        value = None
        if payload is not None:
            source = io.BytesIO(payload)
            try:
                value = read(source, theirs, ours)
            except _FAULTS as error:
                errors[at] = f"not of its schema: {error!r}"[:WHY_CHARS_MAX]
            else:
                if source.tell() != len(payload):
                    errors[at] = f"not of its schema: {len(payload) - source.tell()} bytes are left over"
                    value = None
        values.append(value)
    return values
