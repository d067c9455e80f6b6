"""The types and version ranges with which `messages/` declares its rows; `compiler.py` encodes them.

Invariant: every field has a default, which is its value in versions without the field.

    index: I32 = 0                                              in every version
    rack_id: Annotated[Text, "11+"] = ""                        from version 11 on
    name: Annotated[Text, "3-12"] = ""                          in versions 3 to 12
    topics: Annotated[list[Topic] | None, "null 1+"] = []       in every version; may be null from 1 on
    key: Text | None = None                                     may be null in every version
    leader: Annotated[Leader, "10+ tag 0"] = Leader()           a tagged field: not written if it has its default
"""

import functools
import types
import typing
from enum import Enum
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from braidlog.wire.contract import Slice

Buffer = bytes | bytearray | memoryview


class Kind(Enum):
    """A type on the wire. Fixed-size types have their `struct` code as value."""

    I8 = "b"
    I16 = "h"
    U16 = "H"
    I32 = "i"
    I64 = "q"
    F64 = "d"
    BOOL = "?"
    UUID = "16s"
    TEXT = "text"
    BYTES = "bytes"
    RECORDS = "records"
    STRUCT = "struct"


I8 = Annotated[int, Kind.I8]
I16 = Annotated[int, Kind.I16]
U16 = Annotated[int, Kind.U16]
I32 = Annotated[int, Kind.I32]
I64 = Annotated[int, Kind.I64]
F64 = Annotated[float, Kind.F64]
Bool = Annotated[bool, Kind.BOOL]
Uuid = Annotated[bytes, Kind.UUID]
Text = Annotated[str, Kind.TEXT]
Bytes = Annotated[bytes, Kind.BYTES]
Records = Annotated[Buffer, Kind.RECORDS]
"""Batches, unparsed. When read, they are a view of the frame."""
Sliced = Annotated[Buffer | Slice, Kind.RECORDS]
"""Records that may be written from a slice of a file."""

NO_UUID: Final = bytes(16)
UNASKED: Final = -(2**31)
"""Replaces the authorized operations if the client did not request them."""

_EVER: Final = 2**15


class Message(msgspec.Struct, frozen=True, gc=False):
    """Base of all messages and their parts. (They are trees without cycles, so the garbage collector ignores them.)"""


class Span(NamedTuple):
    """A range of versions, first and last inclusive."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


ALWAYS: Final = Span(0, _EVER)
NEVER: Final = Span(_EVER, -1)


class Field(NamedTuple):
    """One parsed row."""

    name: str
    kind: Kind
    struct: type[Message] | None
    is_array: bool
    versions: Span
    nullable: Span
    tag: int | None
    default: Any


def span_of(words: str) -> Span:
    """Parse `3`, `3+` or `3-12`."""
    first, dash, last = words.partition("-")
    if dash:
        return Span(int(first), int(last))
    if first.endswith("+"):
        return Span(int(first[:-1]), _EVER)
    return Span(int(first), int(first))


@functools.cache
def fields_of(struct: type[Message]) -> tuple[Field, ...]:
    """Return the rows of a message in wire order."""
    hints = typing.get_type_hints(struct, include_extras=True)
    return tuple(_field(info.name, hints[info.name], info) for info in msgspec.structs.fields(struct))


def _field(name: str, hint: Any, info: Any) -> Field:  # noqa: ANN401 - annotations have no type of their own
    words: list[str] = []
    if typing.get_origin(hint) is Annotated and isinstance(hint.__metadata__[-1], str):
        words = hint.__metadata__[-1].split()
        # `Annotated[I32, "9+"]` is one annotation with two metadata items: remove ours and keep the kind.
        hint = Annotated[hint.__origin__, *hint.__metadata__[:-1]] if hint.__metadata__[:-1] else hint.__origin__
    may_be_null, hint = _without_none(hint)
    is_array = typing.get_origin(hint) is list
    item = typing.get_args(hint)[0] if is_array else hint
    kind, struct = _kind(item)
    versions, nullable, tag = _words(words, may_be_null=may_be_null)
    default = info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
    return Field(name, kind, struct, is_array, versions, nullable, tag, default)


def _without_none(hint: Any) -> tuple[bool, Any]:  # noqa: ANN401
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return False, hint
    (rest,) = [part for part in typing.get_args(hint) if part is not type(None)]
    return True, rest


def _kind(item: Any) -> tuple[Kind, type[Message] | None]:  # noqa: ANN401
    if typing.get_origin(item) is Annotated:
        return next(remark for remark in item.__metadata__ if isinstance(remark, Kind)), None
    return Kind.STRUCT, item


def _words(words: list[str], *, may_be_null: bool) -> tuple[Span, Span, int | None]:
    versions = ALWAYS
    nullable = ALWAYS if may_be_null else NEVER
    tag = None
    left = iter(words)
    for word in left:
        if word == "null":
            nullable = span_of(next(left))
        elif word == "tag":
            tag = int(next(left))
        else:
            versions = span_of(word)
    return versions, nullable, tag
