"""Random messages from the rows of the table: every field that a version has, filled with what its type can hold."""

import random
from typing import Any

from braidlog.wire.kafka.rows import Field, Kind, Message, fields_of

_INTEGERS = {
    Kind.I8: (8, True),
    Kind.I16: (16, True),
    Kind.U16: (16, False),
    Kind.I32: (32, True),
    Kind.I64: (64, True),
}
_LETTERS = "abcXYZ019._-éß漢🙂 "


def is_own(field: Field) -> bool:
    """Whether it is a tagged field that Kafka's messages do not have: beside the numbers of our own requests."""
    return field.tag is not None and field.tag >= 0x6270


def make(message: type[Message], version: int, rng: random.Random) -> Message:
    """One message as `version` can carry it: fields that it has are random, the others (and our own) have their defaults."""
    values = {
        field.name: value_of(field, version, rng)
        for field in fields_of(message)
        if version in field.versions and not is_own(field)
    }
    return message(**values)


def value_of(field: Field, version: int, rng: random.Random) -> Any:
    if version in field.nullable and rng.random() < 0.2:
        return None
    if field.tag is not None and rng.random() < 0.4:
        return field.default
    if field.is_array:
        return [_one(field, version, rng) for _ in range(rng.choice((0, 1, 1, 2, 3, 3)))]
    return _one(field, version, rng)


def _one(field: Field, version: int, rng: random.Random) -> Any:
    if field.kind in _INTEGERS:
        bits, signed = _INTEGERS[field.kind]
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return rng.choice((low, high, 0, 1, rng.randint(low, high), rng.randint(low, high)))
    if field.kind is Kind.STRUCT:
        assert field.struct is not None
        return make(field.struct, version, rng)
    if field.kind is Kind.TEXT:
        return "".join(rng.choices(_LETTERS, k=rng.choice((0, 1, 5, 20, 130))))
    if field.kind is Kind.F64:
        return rng.choice((0.0, 1.5, -1e300, rng.random()))
    if field.kind is Kind.BOOL:
        return rng.random() < 0.5
    return rng.randbytes(16 if field.kind is Kind.UUID else rng.choice((0, 1, 12, 127, 300)))
