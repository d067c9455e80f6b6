"""Who has not said yet who it is: how many of them there may be, what they may send, and for how long.

Knows: strangers by address, for all listeners of a node together. Refuses to know: sockets, dialects, which token is right.
Invariant: where authentication is required, no more than `connections_max` strangers are connected, nor `per_peer_max` of one
address.
"""

import msgspec

from braidlog.broker.access.authenticate import Authenticate, Proof, network_of
from braidlog.server.connection_limits import ConnectionLimits


class StrangerLimits(msgspec.Struct, frozen=True):
    """What a connection may do before its client has said who it is."""

    frame_bytes_max: int = 4096
    first_frame_seconds_max: float = 5.0
    seconds_max: float = 10.0
    per_peer_max: int = 32
    connections_max: int = 1000


class Gatekeeper:
    """One for all listeners of a node."""

    def __init__(self, authenticate: Authenticate, limits: StrangerLimits) -> None:
        self.limits = limits
        self._authenticate = authenticate
        self.strangers = ConnectionLimits(limits.connections_max, limits.per_peer_max)

    @property
    def required(self) -> bool:
        """Whether strangers are told from others at all."""
        return self._authenticate.required

    def enter(self, address: str) -> bool:
        """One more stranger from this address; False if that is too many. Either way it has to `leave`."""
        return self.strangers.enter(network_of(address))

    def leave(self, address: str) -> None:
        """It has gone, or is a stranger no more."""
        self.strangers.leave(network_of(address))

    async def prove(self, address: str, principal: str, token: bytes) -> bool:
        return await self._authenticate.prove(address, principal, token)

    async def judge(self, address: str, holds: Proof) -> bool:
        return await self._authenticate.judge(address, holds)
