"""What was seen on a wire: one message of one side, taken apart.

Knows: names, fields, bytes, and which of them are nobody's business. Refuses to know: any dialect.
Invariant: no secret leaves this module. A value that its dialect's table declares secret is replaced, in the fields and in the
bytes, before anybody gets to see the message; where it cannot be found in the bytes, all of the message's body is replaced.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, Final

import msgspec

from braidlog.tools.wire.annotated import HIDDEN

Secrets = Mapping[type, tuple[str, ...]]
"""Message type → names of its attributes that are secret."""
Span = tuple[int, int]


class Side(StrEnum):
    """Who speaks."""

    CLIENT = "client"
    SERVER = "server"


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with a message. `position` counts from its first byte; None where nobody can say."""

    message: str
    position: int | None = None


class Seen(msgspec.Struct, frozen=True):
    """One message. `data` has `**` in the place of secrets; `position` is where it begins in what its side has sent."""

    side: Side
    name: str
    head: dict[str, Any]
    fields: dict[str, Any]
    data: bytes
    header_bytes: int
    position: int = 0
    hidden: tuple[Span, ...] = ()
    fault: Fault | None = None
    left_out: int = 0
    """Bytes at the end of it that were not kept: it is too large."""

    @property
    def size(self) -> int:
        return len(self.data) + self.left_out


class Reading(msgspec.Struct):
    """What a dialect makes of a frame.

    `secrets` are values as they stand in the bytes; with `is_secret` all of the body is one.
    """

    name: str
    head: dict[str, Any]
    header_bytes: int
    message: Any = None
    fields: dict[str, Any] | None = None
    secrets: tuple[bytes, ...] = ()
    is_secret: bool = False
    fault: Fault | None = None


def hidden_text(size: int) -> str:
    return f"<hidden, {size} bytes>"


def see(side: Side, frame: bytes, reading: Reading, table: Secrets, position: int) -> Seen:
    """The message without its secrets."""
    secrets = list(reading.secrets)
    fields = reading.fields
    if fields is None:
        fields = {} if reading.message is None else fields_of(reading.message, table, secrets)
    data, hidden = conceal(frame, reading.header_bytes, secrets, everything=reading.is_secret)
    return Seen(side, reading.name, reading.head, fields, data, reading.header_bytes, position, hidden, reading.fault)


def conceal(
    frame: bytes, header_bytes: int, secrets: Iterable[bytes], *, everything: bool = False
) -> tuple[bytes, tuple[Span, ...]]:
    """The bytes with secrets replaced, and where they were."""
    spans: list[Span] = []
    for secret in secrets:
        if not secret:
            continue
        at = frame.find(secret, header_bytes)
        if at < 0:
            everything = True
        while at >= 0:
            spans.append((at, at + len(secret)))
            at = frame.find(secret, at + len(secret))
    if everything:
        spans = [(header_bytes, len(frame))] if len(frame) > header_bytes else []
    if not spans:
        return frame, ()
    out = bytearray(frame)
    for start, end in spans:
        out[start:end] = bytes((HIDDEN,)) * (end - start)
    return bytes(out), tuple(sorted(spans))


# -- fields ----------------------------------------------------------------------------------------------------

_SCALARS: Final = (str, int, float, bool, type(None), bytes)


def fields_of(message: Any, table: Secrets, secrets: list[bytes]) -> dict[str, Any]:  # noqa: ANN401 - any dialect's message
    """The fields of a message by their names on the wire. Values that are secret are added to `secrets`, and replaced."""
    hidden = table.get(type(message), ())
    found: dict[str, Any] = {}
    for attribute, name in _names(type(message)):
        value = getattr(message, attribute)
        if attribute in hidden and value:
            raw = value.encode() if isinstance(value, str) else bytes(value)
            secrets.append(raw)
            found[name] = hidden_text(len(raw))
        else:
            found[name] = _plain(value, table, secrets)
    return found


def _names(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))


def _plain(value: Any, table: Secrets, secrets: list[bytes]) -> Any:  # noqa: ANN401 - any value of a message
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else f"{value.name}"
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, msgspec.Struct):
        return fields_of(value, table, secrets)
    if isinstance(value, Mapping):
        return {str(key): _plain(each, table, secrets) for key, each in value.items()}
    if isinstance(value, Iterable):
        return [_plain(each, table, secrets) for each in value]
    return str(value)
