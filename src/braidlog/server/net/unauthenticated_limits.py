"""Limits on unauthenticated connections of all listeners: their number, in total and per network, frame size and time.

Invariant: where authentication is required, at most `connections_max` unauthenticated connections exist, and at most
`per_address_max` of one network. One more evicts the oldest of the lowest standing, so silent connections never keep
out a client that is about to authenticate.
"""

from typing import Protocol

import msgspec

from braidlog.security.authentication import Authenticate, Proof, network_of


class UnauthenticatedLimits(msgspec.Struct, frozen=True):
    """Limits of a connection before its client has authenticated."""

    frame_bytes_max: int = 4096
    """Maximum size of a frame before authentication."""
    first_frame_seconds_max: float = 5.0
    """Time from the connection's start until its first request; then the node closes the connection."""
    seconds_max: float = 10.0
    """Time from the connection's start until its client has authenticated; then the node closes the connection."""
    per_address_max: int = 32
    """Maximum unauthenticated connections from one network (an IPv4 address, or the /64 of an IPv6 address)."""
    connections_max: int = 1000
    """Maximum unauthenticated connections, and at most a quarter of all connections; one more replaces an older one."""


class UnauthenticatedConnection(Protocol):
    """A connection whose client has not authenticated."""

    @property
    def standing(self) -> int:
        """Rank in eviction, lowest first: failed authentication, silent, authentication in progress."""
        ...

    def evict(self) -> None: ...


class UnauthenticatedConnections:
    """Unauthenticated connections by network, oldest first."""

    def __init__(self, limits: UnauthenticatedLimits) -> None:
        self._limits = limits
        self._by_network: dict[str, dict[UnauthenticatedConnection, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_network.values()))

    def enter(self, network: str, stranger: UnauthenticatedConnection) -> None:
        crowd = self._by_network.get(network, {})
        if len(crowd) >= self._limits.per_address_max:
            self._evict_from(network)
        elif len(self) >= self._limits.connections_max:
            self._evict_from(max(self._by_network, key=lambda each: len(self._by_network[each])))
        self._by_network.setdefault(network, {})[stranger] = None

    def leave(self, network: str, stranger: UnauthenticatedConnection) -> None:
        """Remove a connection that has closed or authenticated; does nothing if it was evicted."""
        crowd = self._by_network.get(network, {})
        crowd.pop(stranger, None)
        if not crowd:
            self._by_network.pop(network, None)

    def _evict_from(self, network: str) -> None:
        crowd = self._by_network[network]
        oldest = min(crowd, key=lambda each: each.standing)  # the first of equals: dicts keep insertion order
        self.leave(network, oldest)
        oldest.evict()


class AccessGate:
    """Authentication and the limits of unauthenticated connections, shared by all listeners of a node."""

    def __init__(self, authenticate: Authenticate, limits: UnauthenticatedLimits) -> None:
        self.limits = limits
        self._authenticate = authenticate
        self.unauthenticated = UnauthenticatedConnections(limits)

    @property
    def required(self) -> bool:
        """Whether clients must authenticate."""
        return self._authenticate.required

    def enter(self, address: str, stranger: UnauthenticatedConnection) -> None:
        """Count an unauthenticated connection from this address; the caller must `leave`."""
        self.unauthenticated.enter(network_of(address), stranger)

    def leave(self, address: str, stranger: UnauthenticatedConnection) -> None:
        self.unauthenticated.leave(network_of(address), stranger)

    def holds(self, principal: str, token: bytes) -> bool:
        return self._authenticate.holds(principal, token)

    async def prove(self, address: str, principal: str, token: bytes) -> bool:
        return await self._authenticate.prove(address, principal, token)

    async def verify_proof(self, address: str, holds: Proof) -> bool:
        return await self._authenticate.verify_proof(address, holds)
