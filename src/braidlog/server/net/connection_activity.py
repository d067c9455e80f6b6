"""Times of one connection: when it was last active, and when it began to close."""

import asyncio

from braidlog.server.net.pending_requests import PendingRequests

CLOSING_SECONDS_MAX = 10.0
"""How long a closing connection waits for requests that may be cancelled: for its turn, replicas, another node."""


class Activity:
    """The activity of one connection."""

    __slots__ = ("_active_at", "_bytes_seen", "_loop", "closing_since", "last_heard", "opened_at")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.last_heard = self._active_at = self.opened_at = loop.time()
        self._bytes_seen = 0
        self.closing_since: float | None = None

    def note_sent(self, bytes_out: int, now: float) -> None:
        """Count sent bytes as activity: a stream may receive nothing for days. Called by the sweep, not per send."""
        if bytes_out != self._bytes_seen:
            self._bytes_seen, self._active_at = bytes_out, now

    def note_closing(self) -> None:
        if self.closing_since is None:
            self.closing_since = self._loop.time()

    def is_recent(self, seconds: float) -> bool:
        """Whether the client has sent something within the last `seconds`."""
        return self._loop.time() - self.last_heard <= seconds

    def silent_since(self, pending: PendingRequests) -> float | None:
        """Since when the connection is idle or only waits; None while its client is owed an answer."""
        if not all(each.may_end and not each.must_finish for each in pending.running):
            return None
        return 0.0 if self.closing_since is not None else max(self.last_heard, self._active_at)

    def overdue(self, now: float, pending: PendingRequests, idle_seconds_max: float) -> str | None:
        """Return why the connection should be closed, or None: it closes too slowly, or is idle too long."""
        is_late = self.closing_since is not None and now - self.closing_since > CLOSING_SECONDS_MAX
        if is_late and all(each.may_end for each in pending.running):
            return f"closing, and not all requests are answered within {CLOSING_SECONDS_MAX:g} s"
        if not pending.are_any and now - self.last_heard > idle_seconds_max:
            return f"idle for {idle_seconds_max:g} s"
        return None
