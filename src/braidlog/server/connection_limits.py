"""How many connections there are, in all and from each address.

Knows: counts. Refuses to know: sockets, listeners. Invariant: whoever entered leaves once, whether it was let in or not.
"""

from collections import Counter

CONNECTIONS_MAX = 10_000
PER_PEER_MAX = 5_000


class ConnectionLimits:
    """One for all listeners of a node: an address does not become another by knocking at another door."""

    def __init__(self, connections_max: int = CONNECTIONS_MAX, per_peer_max: int = PER_PEER_MAX) -> None:
        self.connections_max = connections_max
        self.per_peer_max = per_peer_max
        self._peers: Counter[str] = Counter()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def enter(self, peer: str) -> bool:
        """One more; False if that is too many. Either way it has to `leave`."""
        self._total += 1
        self._peers[peer] += 1
        return self._total <= self.connections_max and self._peers[peer] <= self.per_peer_max

    def leave(self, peer: str) -> None:
        self._total -= 1
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
