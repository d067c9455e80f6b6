"""What a session needs of its listener: shared request counters, the fair scheduler, and its own address.

Counting costs a request one addition in a dict. One request in `SAMPLED` is timed too, so histograms are cheap.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Final

from braidlog.model.clock import DurationHistogram
from braidlog.server.net.scheduler import FairScheduler

if TYPE_CHECKING:
    from braidlog.server.net.session import Session

SAMPLED: Final = 16


class RequestCounters:
    """Request counters of one listener. Sessions count their own bytes and add them here when they end."""

    __slots__ = ("bytes_in", "bytes_out", "requests", "seconds", "throttled_seconds", "throttles")

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        """Requests by operation; sessions increment them directly."""
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
        """Count a throttling of a client that exceeded its quota."""
        self.throttles += 1
        self.throttled_seconds += seconds

    def ended(self, bytes_in: int, bytes_out: int) -> None:
        """Add the bytes of a connection that has ended."""
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out


class SessionOwner:
    """The listener, as its sessions use it."""

    @cached_property
    def counters(self) -> RequestCounters:
        """Counters shared by the sessions."""
        return RequestCounters()

    @cached_property
    def fair_turns(self) -> FairScheduler:
        """Scheduler of the sessions' work."""
        return FairScheduler()

    def opened(self, session: "Session") -> None: ...

    def closed(self, session: "Session") -> None: ...

    def address_for(self, session: "Session") -> tuple[str, int]:
        raise NotImplementedError
