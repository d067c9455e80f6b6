"""The listener as its sessions know it: what they count together, and where they wait for each other.

Knows: plain integers. Refuses to know: who asks for them, how they are called outside.
Invariant: counting costs a request one addition in a dict; of one request in `SAMPLED` the time is taken too, so that a
histogram costs next to nothing.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Final

from braidlog.model.clock import DurationHistogram
from braidlog.server.net.scheduler import FairScheduler

if TYPE_CHECKING:
    from braidlog.server.net.session import Session

SAMPLED: Final = 16


class RequestCounters:
    """One for each listener. Bytes of connections that are open are with their sessions, and come here when they end."""

    __slots__ = ("bytes_in", "bytes_out", "requests", "seconds", "throttled_seconds", "throttles")

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        """By operation; sessions count here themselves."""
        self.seconds: dict[str, DurationHistogram] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.throttles = 0
        self.throttled_seconds = 0.0

    def took(self, operation: str, seconds: float) -> None:
        found = self.seconds.get(operation)
        if found is None:
            found = self.seconds[operation] = DurationHistogram()
        found.note(seconds)

    def throttled(self, seconds: float) -> None:
        """Someone is not read from for so long, because it moved more than its share."""
        self.throttles += 1
        self.throttled_seconds += seconds

    def ended(self, bytes_in: int, bytes_out: int) -> None:
        """A connection is gone; what it moved is kept."""
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out


class SessionOwner:
    """Keeps account of sessions: the listener."""

    @cached_property
    def counters(self) -> RequestCounters:
        """What its sessions count together."""
        return RequestCounters()

    @cached_property
    def fair_turns(self) -> FairScheduler:
        """Where its sessions wait for the others."""
        return FairScheduler()

    def opened(self, session: "Session") -> None: ...

    def closed(self, session: "Session") -> None: ...

    def address_for(self, session: "Session") -> tuple[str, int]:
        raise NotImplementedError
