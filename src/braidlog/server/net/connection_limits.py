"""Limits on connections: number in total and per address, rate per address, and the limits of one connection.

Invariants: each connection enters and leaves exactly once, whether it was admitted or not. At the limit, a new
connection replaces connections that were idle, or only waited, for longest.
"""

from collections import Counter
from collections.abc import Collection
from typing import Final, Protocol

import msgspec

from braidlog.model.settings import UNLIMITED
from braidlog.security.quotas import Buckets, Quotas

CONNECTIONS_MAX = 10_000
PER_PEER_MAX = 5_000
BURST_SECONDS = 10.0
"""Burst of new connections from one address, in seconds of its rate: a starting program opens many connections."""

IDLE_SECONDS_MIN = 2.0
"""Minimum idle time of a connection that may be closed at the limit; consumers poll again within half a second."""
AT_ONCE_FRACTION = 64
"""Close 1/64 of the limit together, because each search for idle connections inspects all of them."""
LOOK_SECONDS = 1.0
"""Minimum time between two searches when the last one found no idle connection."""


class Member(Protocol):
    """A counted connection."""

    @property
    def host(self) -> str: ...

    @property
    def silent_since(self) -> float | None:
        """Since when the connection is idle or only waits; None while its client is owed an answer."""
        ...

    def give_way(self) -> None: ...


class ConnectionLimits:
    """Counts the connections of all listeners of a node together: limits per address apply across listeners."""

    def __init__(
        self,
        connections_max: int = CONNECTIONS_MAX,
        per_address_max: int = PER_PEER_MAX,
        quotas: Quotas | None = None,
        idle_seconds_min: float = IDLE_SECONDS_MIN,
    ) -> None:
        self._quotas = quotas or Quotas()
        self._arrivals: Buckets[str] = Buckets()
        self.connections_max = connections_max
        self.per_address_max = per_address_max
        self._peers: Counter[str] = Counter()
        self._total = 0
        self._idle_seconds_min = idle_seconds_min
        self._look_after: dict[str, float] = {}
        """Earliest time of the next search for idle connections, by peer; the empty name is the total limit."""
        self.crowds: list[Collection[Member]] = []
        """The connections of each listener."""

    def __len__(self) -> int:
        return self._total

    def enter(self, peer: str, now: float) -> bool:
        """Count a new connection; return False if it exceeds a limit or the rate. Callers must `leave` either way."""
        self._total += 1
        self._peers[peer] += 1
        rate = self._quotas.connections_per_second(peer)
        if rate != UNLIMITED and self._arrivals.get(peer, rate, now, max(rate * BURST_SECONDS, 1)).take_whole(now):
            return False
        if self._peers[peer] > self.per_address_max:
            return self._make_room(peer, self.per_address_max, now)
        return self._total <= self.connections_max or self._make_room("", self.connections_max, now)

    def _make_room(self, peer: str, limit: int, now: float) -> bool:
        """Close the longest idle connections, only those of `peer` if given; return whether any was closed."""
        if now < self._look_after.get(peer, now):
            return False
        idle = [
            (since, each)
            for crowd in self.crowds
            for each in crowd
            if (not peer or each.host == peer)
            and (since := each.silent_since) is not None
            and now - since >= self._idle_seconds_min
        ]
        idle.sort(key=lambda found: found[0])
        for _, each in idle[: max(limit // AT_ONCE_FRACTION, 1)]:
            each.give_way()
        if not idle:
            self._look_after[peer] = now + LOOK_SECONDS
        return bool(idle)

    def leave(self, peer: str) -> None:
        self._total -= 1
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
            self._look_after.pop(peer, None)


FRAME_BYTES_PER_SECOND_MIN: Final = 100_000
"""Received bytes of an incomplete frame extend its time limit at this rate."""


class SessionLimits(msgspec.Struct, frozen=True):
    """Limits of one connection."""

    in_flight_max: int = 1024
    """Maximum unanswered requests of one connection; at the limit the node stops reading from it."""
    output_bytes_max: int = 8 * 1024 * 1024
    """Unsent answer bytes at which the node stops reading from a connection; at four times as many it closes it."""
    output_seconds_max: float = 30.0
    """Close a connection whose send buffer stays full for this time because its client does not read."""
    frame_seconds_max: float = 30.0
    """Time to complete a frame after its first byte, plus one second per 100 kB received; then the node closes the
    connection."""
    idle_seconds_max: float = 600.0
    """Close a connection without requests in progress whose client has sent nothing for this time."""

    def overdue(
        self, now: float, *, blocked_since: float | None, partial_since: float | None, partial_bytes: int
    ) -> str | None:
        """Return why the connection should be closed: its client does not read, or does not complete a frame."""
        if blocked_since is not None and now - blocked_since > self.output_seconds_max:
            return f"answers not read within {self.output_seconds_max:g} s"
        allowed = self.frame_seconds_max + partial_bytes / FRAME_BYTES_PER_SECOND_MIN
        if partial_since is not None and now - partial_since > allowed:
            return f"frame not completed within {allowed:.3g} s"
        return None
