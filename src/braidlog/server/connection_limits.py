"""How many connections there are, in all and from each address, and how fast an address opens more.

Knows: counts. Refuses to know: sockets, listeners. Invariant: whoever entered leaves once, whether it was let in or not.
"""

from collections import Counter

from braidlog.broker.quotas import Buckets, Quotas
from braidlog.model.settings import UNLIMITED

CONNECTIONS_MAX = 10_000
PER_PEER_MAX = 5_000
BURST_SECONDS = 10.0
"""An address that was quiet may open as many connections at once as else in so long: programs start."""


class ConnectionLimits:
    """One for all listeners of a node: an address does not become another by knocking at another door."""

    def __init__(
        self,
        connections_max: int = CONNECTIONS_MAX,
        per_peer_max: int = PER_PEER_MAX,
        quotas: Quotas | None = None,
    ) -> None:
        self._quotas = quotas or Quotas()
        self._arrivals: Buckets[str] = Buckets()
        self.connections_max = connections_max
        self.per_peer_max = per_peer_max
        self._peers: Counter[str] = Counter()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def enter(self, peer: str, now: float) -> bool:
        """One more; False if that is too many, or too soon. Either way it has to `leave`."""
        self._total += 1
        self._peers[peer] += 1
        rate = self._quotas.connections_per_second(peer)
        if rate != UNLIMITED and self._arrivals.get(peer, rate, now, max(rate * BURST_SECONDS, 1)).take_whole(now):
            return False
        return self._total <= self.connections_max and self._peers[peer] <= self.per_peer_max

    def leave(self, peer: str) -> None:
        self._total -= 1
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
