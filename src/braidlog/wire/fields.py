"""Fields of binary messages: how each kind is read, written, and named in tables and dissectors.

Handles numbers, texts and counted rows; messages and limits belong to the dialects.
Invariant: a count or length is used only after it was compared with the bytes present.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from braidlog.codec.cursor import Reader, text16


class Kind(NamedTuple):
    """A kind of field. `bytes_max` 0: limited only by the message. `rows`: the fields of each item of a counted kind."""

    label: str
    read: Callable[[Reader, str], Any]
    write: Callable[[Any], bytes]
    bytes_min: int
    bytes_max: int = 0
    rows: "Layout" = ()


Layout = tuple[tuple[str, Kind], ...]
"""The fields of a message by name, in wire order."""


def _number(label: str, code: str, read: Callable[[Reader, str], int]) -> Kind:
    fixed = struct.Struct(">" + code)
    return Kind(label, read, fixed.pack, fixed.size, fixed.size)


TEXT: Final = Kind("str", Reader.text16, text16, 2)
U8: Final = _number("u8", "B", Reader.u8)
U16: Final = _number("u16", "H", Reader.u16)
U32: Final = _number("u32", "I", Reader.u32)
U64: Final = _number("u64", "Q", Reader.u64)
I64: Final = _number("i64", "q", Reader.i64)


def cut_text(text: str, bytes_max: int) -> bytes:
    """Cut a sentence for people between characters if it is too long."""
    return text.encode("utf-8", "replace")[:bytes_max].decode("utf-8", "ignore").encode()


def counted(of: type, rows: Layout, make: Callable[..., Any] | None = None, bytes_max: int = 0) -> Kind:
    """A count and that many items: of one field, of several (a tuple), or built by `make`."""
    least = sum(kind.bytes_min for _, kind in rows)
    reads, writes = [kind.read for _, kind in rows], [kind.write for _, kind in rows]

    def read(reader: Reader, what: str) -> Any:  # noqa: ANN401 - a list or a tuple
        count = reader.count(reader.u32(f"the count of {what}"), least, what)
        if make is not None:
            return of([make(*[kind.read(reader, name) for name, kind in rows]) for _ in range(count)])
        if len(reads) == 1:
            return of([reads[0](reader, what) for _ in range(count)])
        return of([tuple([each(reader, what) for each in reads]) for _ in range(count)])

    def write(items: Sequence[Any]) -> bytes:
        values = items if make is None else list(map(msgspec.structs.astuple, items))
        if len(writes) == 1:
            parts = list(map(writes[0], values))
        else:
            parts = [each(part) for value in values for each, part in zip(writes, value, strict=True)]
        return b"".join([U32.write(len(values)), *parts])

    label = ", ".join(f"{kind.label} {name}".rstrip() for name, kind in rows)
    return Kind(f"u32 n, n x ({label})", read, write, 4, bytes_max, rows)
