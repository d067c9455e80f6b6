"""Verifies tokens and passwords, and delays answers to wrong ones.

Does not handle: the transport of proofs, sockets.
Invariants: a valid token passes immediately, even if other clients guess at the same address: a token is too long
to be guessed. Of one network, about one wrong password is verified per pause, however many connections it opens.
Waiting attempts are all verified after `WAIT_SECONDS_MAX` at the latest. The pause doubles with every failure, up
to a limit. An unknown principal and a wrong token take the same path. A network without failures never waits. The
table of failures is bounded and expires.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from braidlog.model.runtime.runtime import Runtime
from braidlog.security.authorization import Authorize

NETWORKS_MAX = 10_000
WAIT_SECONDS_MAX = 30.0
NOT_PROVED = "authentication failed: no such user, or not its token (a password is good on Kafka's port only)"
"""The same text for both, so that an attacker learns no user names."""
_IPV6_PREFIX = 64
"""One client usually controls a whole /64."""


Proof = Callable[[], Coroutine[Any, Any, bool]]
"""Verifies a proof."""


class Pauses(msgspec.Struct, frozen=True):
    """The pause after a first failure, the longest pause, and how long a failure is remembered."""

    first_seconds: float = 0.1
    seconds_max: float = 5.0
    failure_memory_seconds: float = 300.0

    def after(self, failures: int) -> float:
        return min(self.first_seconds * 2.0 ** min(failures - 1, 60), self.seconds_max)


class _Suspect:
    """A network with recent failures."""

    __slots__ = ("failed_at", "failures", "free_at")

    def __init__(self) -> None:
        self.failures = 0
        self.failed_at = 0.0
        self.free_at = 0.0


class Authenticate:
    """One instance for all listeners of a node, so that failures at one listener delay the network at every
    listener."""

    def __init__(self, authorize: Authorize, runtime: Runtime, pauses: Pauses | None = None) -> None:
        self._authorize = authorize
        self._runtime = runtime
        self._pauses = pauses or Pauses()
        self._suspects: OrderedDict[str, _Suspect] = OrderedDict()

    @property
    def required(self) -> bool:
        return self._authorize.required

    async def prove(self, address: str, principal: str, token: bytes) -> bool:
        """Return whether the token belongs to the principal; a failure is answered after a pause."""
        return self.holds(principal, token) or await self.verify_proof(address, _never)

    def holds(self, principal: str, token: bytes) -> bool:
        return self._authorize.authenticate(token) == principal

    async def verify_proof(self, address: str, holds: Proof) -> bool:
        """Verify a proof other than a token. It waits for its turn, longer after recent failures of the network."""
        network = network_of(address)
        await self._wait_for_turn(network)
        if await holds():
            return True
        await self._runtime.wakeup().wait(self._failed(network))
        return False

    async def _wait_for_turn(self, network: str) -> None:
        deadline = self._runtime.monotonic() + WAIT_SECONDS_MAX
        while (suspect := self._suspect(network)) is not None:
            now = self._runtime.monotonic()
            pause = min(suspect.free_at, deadline) - now
            if pause <= 0:
                return
            await self._runtime.wakeup().wait(pause)

    def _suspect(self, network: str) -> _Suspect | None:
        """Return the recent failures of a network, if any."""
        suspect = self._suspects.get(network)
        if suspect is not None and self._runtime.monotonic() - suspect.failed_at > self._pauses.failure_memory_seconds:
            del self._suspects[network]
            return None
        return suspect

    def _failed(self, network: str) -> float:
        """Record a failure; return the pause."""
        suspect = self._suspect(network)
        if suspect is None:
            suspect = self._suspects[network] = _Suspect()
            if len(self._suspects) > NETWORKS_MAX:
                self._suspects.popitem(last=False)  # the one with the oldest failure
        self._suspects.move_to_end(network)
        suspect.failures += 1
        suspect.failed_at = self._runtime.monotonic()
        pause = self._pauses.after(suspect.failures)
        suspect.free_at = suspect.failed_at + pause
        return pause

    def __len__(self) -> int:
        return len(self._suspects)


async def _never() -> bool:
    return False


def network_of(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, the /64 of an IPv6 address; any other address
    is its own."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, _IPV6_PREFIX), strict=False))
