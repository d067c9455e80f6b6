"""What every dialect's row of the tools is: one conversation, seen from beside.

Knows: two verbs. Refuses to know: any dialect.

    talk.measure(inbox, side)    how many bytes the next frame has; None until that can be said
    talk.read(side, frame)       what is in it: always something, for a fault is part of what was seen

Whoever watches remembers what was asked: in most dialects an answer can only be read knowing the question.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from braidlog.codec.errors import ProtocolError
from braidlog.codec.inbox import Inbox
from braidlog.tools.wire.seen import Fault, Reading, Secrets, Side

ASKED_MAX: Final = 65_536
"""Questions without an answer that are remembered; of more, the oldest are forgotten."""


class Talk(ABC):
    """One connection of one dialect."""

    name: ClassVar[str]
    is_ordered: ClassVar[bool] = True
    """Whether answers come in the order of their questions."""
    secrets: ClassVar[Secrets] = {}
    volatile: ClassVar[frozenset[str]] = frozenset()
    """Fields of answers that differ from one run to the next: times, ports, ids that a server makes up."""

    @abstractmethod
    def measure(self, inbox: Inbox, side: Side) -> int | None:
        """ProtocolError if no frame can begin so; its position counts from the frame's first byte."""

    def may_be_secret(self, side: Side, begun: bytes) -> bool:  # noqa: ARG002 - who knows more says more
        """Whether a frame of which only the beginning is there may hold a secret."""
        return bool(self.secrets)

    @abstractmethod
    def read(self, side: Side, frame: bytes) -> Reading: ...


class LengthPrefixed(Talk):
    """Frames that begin with their length as u32."""

    frame_bytes_max: ClassVar[int]

    def measure(self, inbox: Inbox, side: Side) -> int | None:  # noqa: ARG002 - the same for both
        size = inbox.peek_u32()
        if size is None:
            return None
        if size > self.frame_bytes_max:
            raise ProtocolError(f"a frame of {size} bytes is announced, {self.frame_bytes_max} is the limit", 0)
        return 4 + size


def fault_of(error: ProtocolError, base: int) -> Fault:
    """An error whose position counts from `base`. The text says the position once, and not twice."""
    position = error.position
    text = str(error)
    if position is None:
        return Fault(text)
    return Fault(text.removesuffix(f" (at byte {position})"), base + position)
