"""The values of keys, and their written form.

Does not handle: keys, expiry, files.
Invariant: `size` of a collection is the length of its written form, updated by every change.

| kind    | in memory   | written                                                           |
|---------|-------------|-------------------------------------------------------------------|
| string  | `bytes`     | itself                                                            |
| counter | `int`       | decimal digits; it is a string that was incremented               |
| list    | `ListValue` | count u32, then of each element: length u32, bytes                |
| hash    | `HashValue` | count u32, then of each field: length u32, name, length u32, value |
"""

import struct
from collections import deque
from collections.abc import Iterable, Iterator

from braidlog.model.errors import ProtocolError

_U32 = struct.Struct(">I")
_pack_u32 = _U32.pack
LENGTH_BYTES = 4

# Memory overhead in CPython, without the bytes of keys and values; a test compares the sum with the measured
# memory.
KEY_COST = 33 + 47
"""The overhead of a `bytes` object, and an entry of a dict, which takes 30 to 60."""
STRING_COST = 33
COUNTER_COST = 32
LIST_COST = 850
HASH_COST = 220
ELEMENT_COST = 33 + 9
FIELD_COST = 2 * 33 + 45
DEADLINE_COST = 140
"""A number and an entry of a dict, and a pair in the heap."""
RECENCY_COST = 85


class ListValue:
    """A list with fast access to both ends."""

    __slots__ = ("era", "items", "size")

    def __init__(self, items: Iterable[bytes] = (), era: int = 0) -> None:
        # Without an argument, a deque begins in the middle of its block; with an empty tuple, at an end of it.
        self.items: deque[bytes] = deque(items) if items else deque()
        self.size = LENGTH_BYTES + sum(LENGTH_BYTES + len(item) for item in self.items)
        self.era = era

    def copy(self, era: int) -> "ListValue":
        twin = ListValue((), era)
        twin.items = self.items.copy()
        twin.size = self.size
        return twin

    def cost(self) -> int:
        return LIST_COST + self.size + (ELEMENT_COST - LENGTH_BYTES) * len(self.items)

    def write(self) -> bytes:
        return _pack_u32(len(self.items)) + pack_strings(self.items)


class HashValue:
    """Fields by name, in insertion order."""

    __slots__ = ("era", "fields", "size")

    def __init__(self, fields: Iterable[tuple[bytes, bytes]] = (), era: int = 0) -> None:
        self.fields = dict(fields)
        self.size = LENGTH_BYTES + sum(2 * LENGTH_BYTES + len(f) + len(v) for f, v in self.fields.items())
        self.era = era

    def copy(self, era: int) -> "HashValue":
        twin = HashValue((), era)
        twin.fields = self.fields.copy()
        twin.size = self.size
        return twin

    def cost(self) -> int:
        return HASH_COST + self.size + (FIELD_COST - 2 * LENGTH_BYTES) * len(self.fields)

    def write(self) -> bytes:
        return _pack_u32(len(self.fields)) + pack_pairs(self.fields.items())


Value = bytes | int | ListValue | HashValue


def cost_of(value: Value) -> int:
    """Return the memory that a value uses."""
    if type(value) is bytes:
        return STRING_COST + len(value)
    if type(value) is int:
        return COUNTER_COST
    return value.cost()  # type: ignore[union-attr]


def quoted(key: bytes) -> str:
    """Return a key for messages: as text, or with escaped bytes; at most 60 of them."""
    try:
        return repr(key[:60].decode())
    except UnicodeDecodeError:
        return repr(key[:60]).removeprefix("b")


_KINDS: dict[type, str] = {bytes: "string", int: "counter", ListValue: "list", HashValue: "hash"}
KINDS_BY_CODE = dict(enumerate(_KINDS.values(), 1))
"""Codes of kinds on disk and between nodes: 1 string, 2 counter, 3 list, 4 hash."""
_CODES = dict(zip(_KINDS, KINDS_BY_CODE, strict=True))


def kind_of(value: Value) -> str:
    return _KINDS[type(value)]


def code_of(value: Value) -> int:
    """Return the code of a value's kind."""
    return _CODES[type(value)]


def write_value(value: Value) -> bytes:
    """Return the written form of any value."""
    if type(value) is bytes:
        return value
    if type(value) is int:
        return b"%d" % value
    return value.write()  # type: ignore[union-attr]


def read_value(kind: str, data: bytes) -> Value:
    """Return the value of a written form; raise `ProtocolError` if it is invalid."""
    match kind:
        case "string":
            return data
        case "counter":
            return _read_counter(data)
        case "list":
            return ListValue(_counted(data, list(strings_in(data[LENGTH_BYTES:])), 1))
        case "hash":
            return HashValue(pairs_of(_counted(data, list(strings_in(data[LENGTH_BYTES:])), 2)))
    raise ProtocolError(f"a value of kind {kind!r} is not known here")


def read_coded(code: int, data: bytes) -> Value:
    """Return the value of a written form, by the code of its kind."""
    return read_value(KINDS_BY_CODE.get(code, str(code)), data)


def _read_counter(data: bytes) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise ProtocolError(f"a counter of {len(data)} bytes is not a number") from error


def _counted(data: bytes, strings: list[bytes], each: int) -> list[bytes]:
    if len(data) < LENGTH_BYTES or _U32.unpack_from(data)[0] * each != len(strings):
        raise ProtocolError(f"a collection of {len(strings) // each} elements does not have as many as it says")
    return strings


def pack_strings(strings: Iterable[bytes]) -> bytes:
    """Return the strings, each after its length."""
    return b"".join([part for string in strings for part in (_pack_u32(len(string)), string)])


def pack_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    return pack_strings([string for pair in pairs for string in pair])


def strings_in(data: bytes) -> Iterator[bytes]:
    """Yield the strings of `pack_strings`; raise `ProtocolError` if the bytes are invalid."""
    position, end = 0, len(data)
    while position < end:
        start = position + LENGTH_BYTES
        if start > end:
            raise ProtocolError(f"a length is cut short at byte {position}")
        position = start + int.from_bytes(data[position:start], "big")
        if position > end:
            raise ProtocolError(f"a string at byte {start} is longer than what is left")
        yield data[start:position]


def pairs_of(strings: list[bytes]) -> list[tuple[bytes, bytes]]:
    if len(strings) % 2:
        raise ProtocolError("a field without its value")
    return list(zip(strings[::2], strings[1::2], strict=True))
