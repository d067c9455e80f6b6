"""Who has not said yet who it is: how many of them there may be, what they may send, and for how long.

Knows: strangers by address, for all listeners of a node together. Refuses to know: sockets, dialects, which token is right.
Invariant: where authentication is required, no more than `connections_max` strangers are connected, nor `per_address_max` of one
address. One more takes the place of the oldest: who is about to show a token is never turned away because others are silent.
"""

from typing import Protocol

import msgspec

from braidlog.security.authentication import Authenticate, Proof, network_of


class UnauthenticatedLimits(msgspec.Struct, frozen=True):
    """What a connection may do before its client has said who it is."""

    frame_bytes_max: int = 4096
    first_frame_seconds_max: float = 5.0
    seconds_max: float = 10.0
    per_address_max: int = 32
    connections_max: int = 1000


class UnauthenticatedConnection(Protocol):
    """A connection of a client that has not said who it is."""

    @property
    def standing(self) -> int:
        """The lowest goes first: who was wrong, who is silent, whose proof is still to be looked at."""
        ...

    def evict(self) -> None: ...


class UnauthenticatedConnections:
    """By network, oldest first."""

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
        """It has gone, or is a stranger no more; that it was evicted before is no error."""
        crowd = self._by_network.get(network, {})
        crowd.pop(stranger, None)
        if not crowd:
            self._by_network.pop(network, None)

    def _evict_from(self, network: str) -> None:
        crowd = self._by_network[network]
        oldest = min(crowd, key=lambda each: each.standing)  # of several, the first that came
        self.leave(network, oldest)
        oldest.evict()


class AccessGate:
    """One for all listeners of a node."""

    def __init__(self, authenticate: Authenticate, limits: UnauthenticatedLimits) -> None:
        self.limits = limits
        self._authenticate = authenticate
        self.unauthenticated = UnauthenticatedConnections(limits)

    @property
    def required(self) -> bool:
        """Whether strangers are told from others at all."""
        return self._authenticate.required

    def enter(self, address: str, stranger: UnauthenticatedConnection) -> None:
        """One more stranger from this address; it has to `leave`."""
        self.unauthenticated.enter(network_of(address), stranger)

    def leave(self, address: str, stranger: UnauthenticatedConnection) -> None:
        self.unauthenticated.leave(network_of(address), stranger)

    def holds(self, principal: str, token: bytes) -> bool:
        return self._authenticate.holds(principal, token)

    async def prove(self, address: str, principal: str, token: bytes) -> bool:
        return await self._authenticate.prove(address, principal, token)

    async def verify_proof(self, address: str, holds: Proof) -> bool:
        return await self._authenticate.verify_proof(address, holds)
