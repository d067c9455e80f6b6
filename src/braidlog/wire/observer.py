"""Decodes the captured traffic of one connection for the wire tools.

    observer.measure(inbox, side)    the size of the next frame; None until it is known
    observer.read(side, frame)       the decoded frame: always a result, because faults are reported in it

An observer stores open requests: in most dialects an answer can be read only with its request.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, ClassVar, Final

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.codec.receive_buffer import ReceiveBuffer
from braidlog.wire.dialect import Secrets, watched

ASKED_MAX: Final = 65_536
"""Maximum stored requests without an answer; the oldest are dropped."""


class Side(StrEnum):
    """The sender of a message."""

    CLIENT = "client"
    SERVER = "server"


class Fault(msgspec.Struct, frozen=True):
    """The fault of a message. `position` counts from its first byte; None if unknown."""

    message: str
    position: int | None = None


class Reading(msgspec.Struct):
    """A decoded frame.

    `secrets` are secret values as they appear in the bytes; with `is_secret` the whole body is secret.
    """

    name: str
    head: dict[str, Any]
    header_bytes: int
    message: Any = None
    fields: dict[str, Any] | None = None
    secrets: tuple[bytes, ...] = ()
    is_secret: bool = False
    fault: Fault | None = None


class Observer(ABC):
    """Decodes one connection of one dialect."""

    is_ordered: ClassVar[bool] = True
    """Whether answers come in the order of their requests."""
    volatile: ClassVar[frozenset[str]] = frozenset()
    """Fields of answers that differ between runs: times, ports, ids chosen by a server."""

    @abstractmethod
    def measure(self, inbox: ReceiveBuffer, side: Side) -> int | None:
        """Raise ProtocolError if no frame can begin like this; its position counts from the frame's first byte."""

    def may_be_secret(self, side: Side, begun: bytes) -> bool:  # noqa: ARG002 - dialects override it
        """Return whether an incomplete frame may contain a secret, in a dialect that has some."""
        return True

    @abstractmethod
    def read(self, side: Side, frame: bytes) -> Reading: ...


class Asked(dict[Any, Any]):
    """Requests by id until they are answered; above the limit, the oldest are dropped."""

    def __setitem__(self, key: object, value: object) -> None:
        if len(self) >= ASKED_MAX:
            del self[next(iter(self))]
        super().__setitem__(key, value)


class LengthPrefixed(Observer):
    """Frames that begin with a u32 length."""

    frame_bytes_max: ClassVar[int]

    def measure(self, inbox: ReceiveBuffer, side: Side) -> int | None:  # noqa: ARG002 - equal for both
        size = inbox.peek_u32()
        if size is None:
            return None
        if size > self.frame_bytes_max:
            raise ProtocolError(f"a frame announces {size} bytes, the limit is {self.frame_bytes_max}", 0)
        return 4 + size


def observer_class(dialect: str) -> type[Observer]:
    """Return a dialect's observer, imported on first use."""
    found: type[Observer] = watched()[dialect].part(f"braidlog.wire.{dialect}.observer", "Observer")
    return found


def fault_of(error: ProtocolError, base: int) -> Fault:
    """Return an error as a fault whose position counts from `base`. The position is removed from the text."""
    position = error.position
    text = str(error)
    if position is None:
        return Fault(text)
    return Fault(text.removesuffix(f" (at byte {position})"), base + position)


def hidden_text(size: int) -> str:
    return f"<hidden, {size} bytes>"


_SCALARS: Final = (str, int, float, bool, type(None), bytes)


def fields_of(message: Any, table: Secrets, secrets: list[bytes]) -> dict[str, Any]:  # noqa: ANN401 - any dialect's message
    """Return the fields of a message by their names on the wire. Secret values are added to `secrets` and hidden."""
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
