"""How a row of the table is written and read: the words of `messages/`.

Knows: types on the wire, and the small language of versions. Refuses to know: any message, and bytes (`compiler.py` makes them).
Invariant: every field has a default, which stands for it in versions that do not have it.

    index: I32 = 0                                              in every version
    rack_id: Annotated[Text, "11+"] = ""                        from version 11 on
    name: Annotated[Text, "3-12"] = ""                          in versions 3 to 12
    topics: Annotated[list[Topic] | None, "null 1+"] = []       in every version; may be null from 1 on
    key: Text | None = None                                     may be null wherever it is
    leader: Annotated[Leader, "10+ tag 0"] = Leader()           a tagged field: not written where it is its default
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
    """A type on the wire. Fixed ones have the value of their code in `struct`."""

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
"""Batches as they are. Read, they are a view of the frame."""
Sliced = Annotated[Buffer | Slice, Kind.RECORDS]
"""Records that, to be written, may also be a slice of a file."""

NO_UUID: Final = bytes(16)
UNASKED: Final = -(2**31)
"""In place of what somebody may do: it was not asked for."""

_EVER: Final = 2**15


class Message(msgspec.Struct, frozen=True, gc=False):
    """What all messages and their parts are. (They are trees: nothing here can be a cycle, so nothing is collected as one.)"""


class Span(NamedTuple):
    """Versions, from the first to the last."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


ALWAYS: Final = Span(0, _EVER)
NEVER: Final = Span(_EVER, -1)


class Field(NamedTuple):
    """One row, understood."""

    name: str
    kind: Kind
    struct: type[Message] | None
    is_array: bool
    versions: Span
    nullable: Span
    tag: int | None
    default: Any


def span_of(words: str) -> Span:
    """`3`, `3+` or `3-12`."""
    first, dash, last = words.partition("-")
    if dash:
        return Span(int(first), int(last))
    if first.endswith("+"):
        return Span(int(first[:-1]), _EVER)
    return Span(int(first), int(first))


@functools.cache
def fields_of(struct: type[Message]) -> tuple[Field, ...]:
    """The rows of a message, in the order of the wire."""
    hints = typing.get_type_hints(struct, include_extras=True)
    return tuple(_field(info.name, hints[info.name], info) for info in msgspec.structs.fields(struct))


def _field(name: str, hint: Any, info: Any) -> Field:  # noqa: ANN401 - annotations have no type of their own
    words: list[str] = []
    if typing.get_origin(hint) is Annotated and isinstance(hint.__metadata__[-1], str):
        words = hint.__metadata__[-1].split()
        # `Annotated[I32, "9+"]` is one annotation with two remarks: take ours off and leave the kind.
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
