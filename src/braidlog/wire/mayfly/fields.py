"""The fields of mayfly's bodies: length-prefixed, count-prefixed, tagged. Each kind is read and written in one place.

Declares the fields of each message; headers, request ids and commands are elsewhere.
Invariant: a length or count is used only after it was compared with the bytes present; an exceeded limit names its
status.

    key, field   ┌──────────┬───────┐     value  ┌──────────┬───────┐     tagged  ┌───────┬──────────┬───────┐
                 │ length 2 │ bytes │            │ length 4 │ bytes │             │ tag 2 │ length 2 │ value │ …
                 └──────────┴───────┘            └──────────┴───────┘             └───────┴──────────┴───────┘

Tagged fields come last, in any order. An unknown tag is skipped; a missing one has its default.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, NamedTuple

from braidlog.codec.cursor import Reader
from braidlog.codec.errors import ProtocolError
from braidlog.model.limits import KV_COLLECTION_ITEMS_MAX, KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX
from braidlog.wire.fields import I64, TEXT, U8, U16, U32, U64, Kind, Layout, counted, cut_text
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.messages import (
    MANY_BYTES_MAX,
    TOKEN_BYTES_MAX,
    Status,
)

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_TAG: Final = struct.Struct(">HH")

OPTIONS_BYTES_MAX: Final = 256
"""Maximum bytes of a request's tagged fields, with room for those of later versions."""
_TEXT_BYTES_MAX: Final = 1024


class PayloadError(ProtocolError):
    """A body that cannot be served, with its status. The end of its frame is known, so the connection stays open."""

    def __init__(self, message: str, position: int | None = None, status: Status = Status.BAD_PAYLOAD) -> None:
        super().__init__(message, position)
        self.status = status

    @classmethod
    def of(cls, error: ProtocolError) -> "PayloadError":
        """Convert the error of a field reader."""
        found = cls(str(error))
        found.position = error.position
        return found


# -- one value -----------------------------------------------------------------------------------------------------


def _read_key(reader: Reader, what: str) -> bytes:
    at = reader.position
    size = reader.u16(what)
    if size > KV_KEY_BYTES_MAX:
        raise PayloadError(f"{what} of {size} bytes, the limit is {KV_KEY_BYTES_MAX}", at, Status.KEY_TOO_LONG)
    if not size:
        raise PayloadError(f"{what} is empty", at)
    return reader.take(size, what)


def _write_key(key: bytes) -> bytes:
    if not 0 < len(key) <= KV_KEY_BYTES_MAX:
        raise PayloadError(f"a key must have 1 to {KV_KEY_BYTES_MAX} bytes, not {len(key)}", status=Status.KEY_TOO_LONG)
    return _U16.pack(len(key)) + key


def _read_value(reader: Reader, what: str) -> bytes:
    at = reader.position
    size = reader.u32(what)
    if size > KV_VALUE_BYTES_MAX:
        raise PayloadError(f"{what} of {size} bytes, the limit is {KV_VALUE_BYTES_MAX}", at, Status.VALUE_TOO_LARGE)
    return reader.take(size, what)


def _write_value(value: bytes) -> bytes:
    if len(value) > KV_VALUE_BYTES_MAX:
        raise PayloadError(
            f"a value may have up to {KV_VALUE_BYTES_MAX} bytes, not {len(value)}", status=Status.VALUE_TOO_LARGE
        )
    return _U32.pack(len(value)) + value


def _read_name(reader: Reader, what: str) -> bytes:
    at = reader.position
    size = reader.u16(what)
    if size > KV_KEY_BYTES_MAX:
        raise PayloadError(f"{what} of {size} bytes, the limit is {KV_KEY_BYTES_MAX}", at, Status.KEY_TOO_LONG)
    return reader.take(size, what)


def _write_name(name: bytes) -> bytes:
    return _write_key(name) if name else _U16.pack(0)


def _read_token(reader: Reader, what: str) -> bytes:
    return reader.take(reader.u16(what), what)


def _write_token(token: bytes) -> bytes:
    if len(token) > TOKEN_BYTES_MAX:
        raise PayloadError(f"a token may have up to {TOKEN_BYTES_MAX} bytes, not {len(token)}")
    return _U16.pack(len(token)) + token


KEY = Kind("u16 len + key", _read_key, _write_key, 3, 2 + KV_KEY_BYTES_MAX)
FIELD = KEY._replace(label="u16 len + field")
VALUE = Kind("u32 len + value", _read_value, _write_value, 4, 4 + KV_VALUE_BYTES_MAX)
NAME = Kind("u16 len + name or nothing", _read_name, _write_name, 2, 2 + KV_KEY_BYTES_MAX)
TOKEN = Kind("u16 len + token", _read_token, _write_token, 2, 2 + TOKEN_BYTES_MAX)


# -- many ----------------------------------------------------------------------------------------------------------


def _some(kind: Kind) -> Kind:
    """A count and at least one item: a command without items is a client error."""
    least = sum(each.bytes_min for _, each in kind.rows)

    def read(reader: Reader, what: str) -> Any:  # noqa: ANN401 - any value of the kind
        at = reader.position
        count = reader.count(reader.u32(f"the count of {what}"), least, what)
        if not count:
            raise PayloadError(f"no {what}", at)
        if count > KV_COLLECTION_ITEMS_MAX:  # before they are read: no list or hash can have more
            text = f"{count} {what}, the limit of a list or hash is {KV_COLLECTION_ITEMS_MAX}"
            raise PayloadError(text, at, Status.VALUE_TOO_LARGE)
        reader.position = at
        return kind.read(reader, what)

    def write(items: Sequence[Any]) -> bytes:
        if not items:
            raise PayloadError("at least one item is required")
        return kind.write(items)

    return kind._replace(read=read, write=write, bytes_max=MANY_BYTES_MAX - KEY.bytes_max)


def _enum(kind: Any, value: int, position: int) -> Any:  # noqa: ANN401 - an IntEnum, and a member of it
    try:
        return kind(value)
    except ValueError:
        raise PayloadError(f"{value} is not a {kind.__name__}", position) from None


def _read_state(reader: Reader, what: str) -> m.NodeState:
    found: m.NodeState = _enum(m.NodeState, reader.u8(what), reader.position - 1)
    return found


VALUES = counted(tuple, (("", VALUE),))
PAIRS = counted(tuple, (("", FIELD), ("", VALUE)))
NAMES = counted(tuple, (("", KEY),))
SOME_VALUES = _some(VALUES)
SOME_PAIRS = _some(PAIRS)
SOME_FIELDS = _some(counted(tuple, (("", FIELD),)))
_NODE: Final = (("name", TEXT), ("state", U8._replace(read=_read_state)), ("host", TEXT), ("port", U16))
NODES = counted(tuple, _NODE, m.Node)


# -- tagged --------------------------------------------------------------------------------------------------------


class Tag(NamedTuple):
    """One tagged field: its number, and a kind of fixed length for its value."""

    number: int
    label: str
    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]


def _figure(raw: bytes) -> int:
    if len(raw) != 8:
        raise PayloadError(f"a count must have 8 bytes, not {len(raw)}")
    return int.from_bytes(raw, "big")


def _condition(raw: bytes) -> m.Condition:
    if len(raw) != 1:
        raise PayloadError(f"a condition must have 1 byte, not {len(raw)}")
    found: m.Condition = _enum(m.Condition, raw[0], 0)
    return found


def _flag(raw: bytes) -> bool:
    if raw not in (b"\x00", b"\x01"):
        raise PayloadError("a flag must be one byte, 0 or 1")
    return raw == b"\x01"


def _figures(*names: str) -> dict[str, Tag]:
    return {name: Tag(number, "u64", _figure, U64.write) for number, name in enumerate(names, 1)}


def _text(number: int) -> Tag:
    return Tag(
        number, "UTF-8", lambda raw: raw.decode("utf-8", "replace"), lambda text: cut_text(text, _TEXT_BYTES_MAX)
    )


TAGS: Final[Mapping[type[m.Message], Mapping[str, Tag]]] = {
    m.Set: {"condition": Tag(1, "u8: 1 if absent, 2 if present", _condition, U8.write)},
    m.Stored: {
        "stored": Tag(1, "u8: 0 if the condition did not hold", _flag, lambda stored: b"\x01" if stored else b"\x00")
    },
    m.SnapshotTaken: _figures(*m.SnapshotTaken.__struct_fields__),
    m.MemoryUse: _figures(*m.MemoryUse.__struct_fields__),
    m.Statistics: _figures(*m.Statistics.__struct_fields__),
    m.ClusterState: {
        "mode": _text(1),
        "node": _text(2),
        "nodes": Tag(3, "u64", _figure, U64.write),
        "epoch": Tag(4, "u64", _figure, U64.write),
    },
    m.Failure: {"message": _text(1)},
    m.TopologyChanged: {"message": _text(1), "epoch": Tag(2, "u64", _figure, U64.write)},
}
"""A number is never used twice or reused."""


def read_tagged(reader: Reader, tags: Mapping[str, Tag]) -> dict[str, Any]:
    """Read the tagged fields up to the end of the message. If a tag is repeated, the last one counts."""
    by_number = {tag.number: (name, tag) for name, tag in tags.items()}
    found = {}
    while reader.left:
        at = reader.position
        number = reader.u16("a tag")
        raw = reader.take(reader.u16("the length of a tagged field"), "a tagged field")
        if number in by_number:
            name, tag = by_number[number]
            try:
                found[name] = tag.read(raw)
            except PayloadError as error:
                raise PayloadError(f"tag {number} ({name}): {error}", at) from None
    return found


def write_tagged(message: m.Message, tags: Mapping[str, Tag]) -> bytes:
    """Write the fields that differ from their default."""
    defaults = dict(zip(reversed(message.__struct_fields__), reversed(message.__struct_defaults__), strict=False))
    parts = []
    for name, tag in tags.items():
        value = getattr(message, name)
        if value != defaults[name]:
            raw = tag.write(value)
            parts.append(_TAG.pack(tag.number, len(raw)) + raw)
    return b"".join(parts)


# -- addresses -----------------------------------------------------------------------------------------------------


def read_address(reader: Reader) -> m.Moved:
    """Read 6 bytes, as in the protocol document, or 18: an IPv6 address and a port."""
    if reader.left not in (6, 18):
        raise PayloadError(f"an address must have 6 or 18 bytes, not {reader.left}", reader.position)
    raw = reader.take(reader.left - 2, "an address")
    address = IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw)
    return m.Moved(str(address), reader.u16("a port"))


def write_address(moved: m.Moved) -> bytes:
    return ip_address(moved.host).packed + _U16.pack(moved.port)


# -- messages ------------------------------------------------------------------------------------------------------

_KINDS: Final = {
    "token": TOKEN, "key": KEY, "field": FIELD, "value": VALUE,
    "ttl_seconds": U32, "length": U32, "count": U32, "start": I64, "stop": I64, "delta": I64, "number": I64,
    "values": SOME_VALUES, "pairs": SOME_PAIRS, "fields": SOME_FIELDS, "nodes": NODES,
    "slot": U16, "slots": U16, "position": U64, "after": NAME, "prefix": NAME, "names": NAMES,
}  # fmt: skip
"""The kind of every untagged field, by name."""

LAYOUTS: Final[dict[type[m.Message], Layout]] = {
    **{
        kind: tuple((name, _KINDS[name]) for name in kind.__struct_fields__ if name not in TAGS.get(kind, ()))
        for kind in m.Message.__subclasses__()
        if kind not in (m.Node, m.Failure, m.Moved, m.TopologyChanged)
    },
    m.Values: (("values", VALUES),),
    m.Pairs: (("pairs", PAIRS),),
}
"""The untagged fields in order. Tagged ones may follow if `TAGS` has the message."""

GROWING: Final = frozenset({m.Set, m.Snapshot, m.Memory, m.Stats, m.ClusterInfo, m.ClusterNodes, m.Leave})
"""Requests that may end with tagged fields, known or unknown."""


def payload_bytes_max(kind: type[m.Message]) -> int:
    """Return the maximum bytes of a request of this type."""
    return sum(field.bytes_max for _, field in LAYOUTS[kind]) + OPTIONS_BYTES_MAX * (kind in GROWING)


def read_request(kind: type[m.Message], payload: bytes) -> m.Message:
    """Read a request's body. Raises `PayloadError` for invalid bytes."""
    reader = Reader(payload)
    values = {}
    try:
        for name, field in LAYOUTS[kind]:
            if name == "ttl_seconds" and kind is m.Set and not reader.left:
                break  # the document's SET may end here
            values[name] = field.read(reader, name)
        if kind in GROWING:
            values |= read_tagged(reader, TAGS.get(kind, {}))
        reader.end(kind.__name__)
    except PayloadError:
        raise
    except ProtocolError as error:
        raise PayloadError.of(error) from None
    return kind(**values)


def write_request(message: m.Message) -> bytes:
    """Write a request's body. Raises `PayloadError` if the dialect cannot express it."""
    kind = type(message)
    fixed = []
    for name, field in LAYOUTS[kind]:
        value = getattr(message, name)
        try:
            fixed.append(field.write(value))
        except struct.error:
            raise PayloadError(f"{name} {value} does not fit {field.label}") from None
    options = write_tagged(message, TAGS.get(kind, {})) if kind in GROWING else b""
    if kind is m.Set and not message.ttl_seconds and not options:  # type: ignore[attr-defined]
        fixed.pop()
    payload = b"".join([*fixed, options])
    if len(payload) > payload_bytes_max(kind):
        raise PayloadError(
            f"a {kind.__name__} of {len(payload)} bytes, the limit is {payload_bytes_max(kind)}",
            status=Status.VALUE_TOO_LARGE,
        )
    return payload


def read_answer(kind: type[m.Message], payload: bytes) -> m.Message:
    """Read the body of an OK."""
    reader = Reader(payload)
    values = {name: field.read(reader, name) for name, field in LAYOUTS[kind]}
    # A newer server may append fields: they are tagged, and unknown ones are skipped.
    return kind(**values, **read_tagged(reader, TAGS.get(kind, {})))


def write_answer(answer: m.Message) -> bytes:
    kind = type(answer)
    fixed = [field.write(getattr(answer, name)) for name, field in LAYOUTS[kind]]
    return b"".join([*fixed, write_tagged(answer, TAGS.get(kind, {}))])
