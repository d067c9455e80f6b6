"""One conversation of a dialect, seen from beside: what the wire tools know of it.

Knows: two verbs, and what a message looks like taken apart. Refuses to know: any dialect, and who watches.

    observer.measure(inbox, side)    how many bytes the next frame has; None until that can be said
    observer.read(side, frame)       what is in it: always something, for a fault is part of what was seen

An observer remembers what was asked: in most dialects an answer can only be read knowing the question.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, ClassVar, Final

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.codec.inbox import Inbox
from braidlog.wire.dialect import Secrets, watched

ASKED_MAX: Final = 65_536
"""Questions without an answer that are remembered; of more, the oldest are forgotten."""


class Side(StrEnum):
    """Who speaks."""

    CLIENT = "client"
    SERVER = "server"


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with a message. `position` counts from its first byte; None where nobody can say."""

    message: str
    position: int | None = None


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


class Observer(ABC):
    """One connection of one dialect."""

    is_ordered: ClassVar[bool] = True
    """Whether answers come in the order of their questions."""
    volatile: ClassVar[frozenset[str]] = frozenset()
    """Fields of answers that differ from one run to the next: times, ports, ids that a server makes up."""

    @abstractmethod
    def measure(self, inbox: Inbox, side: Side) -> int | None:
        """ProtocolError if no frame can begin so; its position counts from the frame's first byte."""

    def may_be_secret(self, side: Side, begun: bytes) -> bool:  # noqa: ARG002 - who knows more says more
        """Whether a frame of which only the beginning is there may hold a secret, in a dialect that has some."""
        return True

    @abstractmethod
    def read(self, side: Side, frame: bytes) -> Reading: ...


class Asked(dict[Any, Any]):
    """Questions by their id, until they are answered; of too many, the oldest are forgotten."""

    def __setitem__(self, key: object, value: object) -> None:
        if len(self) >= ASKED_MAX:
            del self[next(iter(self))]
        super().__setitem__(key, value)


class LengthPrefixed(Observer):
    """Frames that begin with their length as u32."""

    frame_bytes_max: ClassVar[int]

    def measure(self, inbox: Inbox, side: Side) -> int | None:  # noqa: ARG002 - the same for both
        size = inbox.peek_u32()
        if size is None:
            return None
        if size > self.frame_bytes_max:
            raise ProtocolError(f"a frame of {size} bytes is announced, {self.frame_bytes_max} is the limit", 0)
        return 4 + size


def observer_class(dialect: str) -> type[Observer]:
    """A dialect's observer is imported when it is first asked for."""
    found: type[Observer] = watched()[dialect].part(f"braidlog.wire.{dialect}.observer", "Observer")
    return found


def fault_of(error: ProtocolError, base: int) -> Fault:
    """An error whose position counts from `base`. The text says the position once, and not twice."""
    position = error.position
    text = str(error)
    if position is None:
        return Fault(text)
    return Fault(text.removesuffix(f" (at byte {position})"), base + position)


def hidden_text(size: int) -> str:
    return f"<hidden, {size} bytes>"


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
