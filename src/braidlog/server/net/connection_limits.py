"""How many connections there are, in all and from each address, how fast an address opens more; and what one connection may use.

Knows: counts, and which connections are idle. Refuses to know: sockets, listeners.
Invariants: a connection that entered leaves once, whether it was admitted or not; at the limit a new connection takes the place
of the one that is idle, or only waits, for longest.
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
"""An address that was quiet may open as many connections at once as else in so long: programs start."""

IDLE_SECONDS_MIN = 2.0
"""A connection that was silent for so long gives way to a new one at the limit; consumers ask again within half a second."""
AT_ONCE_FRACTION = 64
"""This part of all connections gives way together, because to find the idle ones costs a look at each."""
LOOK_SECONDS = 1.0
"""While none is idle, nothing is looked at again for so long."""


class Member(Protocol):
    """A connection."""

    @property
    def host(self) -> str: ...

    @property
    def silent_since(self) -> float | None:
        """Since when it is idle or only waits; None while its client is owed an answer."""
        ...

    def give_way(self) -> None: ...


class ConnectionLimits:
    """One for all listeners of a node: an address does not become another by knocking at another door."""

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
        """By peer where the limit is a peer's, else by the empty name: when to look for idle connections again."""
        self.crowds: list[Collection[Member]] = []
        """The connections of each listener."""

    def __len__(self) -> int:
        return self._total

    def enter(self, peer: str, now: float) -> bool:
        """One more; False if that is too many, or too soon. Either way it has to `leave`."""
        self._total += 1
        self._peers[peer] += 1
        rate = self._quotas.connections_per_second(peer)
        if rate != UNLIMITED and self._arrivals.get(peer, rate, now, max(rate * BURST_SECONDS, 1)).take_whole(now):
            return False
        if self._peers[peer] > self.per_address_max:
            return self._make_room(peer, self.per_address_max, now)
        return self._total <= self.connections_max or self._make_room("", self.connections_max, now)

    def _make_room(self, peer: str, limit: int, now: float) -> bool:
        """Close the connections, of `peer` if one is named, that are silent for longest; whether there was one."""
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
"""What has come of a frame buys time at this rate."""


class SessionLimits(msgspec.Struct, frozen=True):
    """What one connection may use."""

    in_flight_max: int = 1024
    output_bytes_max: int = 8 * 1024 * 1024
    output_seconds_max: float = 30.0
    frame_seconds_max: float = 30.0
    idle_seconds_max: float = 600.0

    def overdue(
        self, now: float, *, blocked_since: float | None, partial_since: float | None, partial_bytes: int
    ) -> str | None:
        """Why a connection should be cut off that does not read its answers, or has begun a frame, since then."""
        if blocked_since is not None and now - blocked_since > self.output_seconds_max:
            return f"answers not read within {self.output_seconds_max:g} s"
        allowed = self.frame_seconds_max + partial_bytes / FRAME_BYTES_PER_SECOND_MIN
        if partial_since is not None and now - partial_since > allowed:
            return f"frame not completed within {allowed:.3g} s"
        return None
