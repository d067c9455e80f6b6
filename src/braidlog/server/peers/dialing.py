"""Dials another node: address, certificate check, and pauses after failures.

Invariant: with certificates, the node that answers is the node that was dialled.
"""

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Final, TypeVar

from braidlog.adapters.peers.follower_sessions import name_of

log = logging.getLogger("braidlog.peers")

CONNECT_SECONDS_MAX: Final = 2.0
PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
UNHEARD_MS: Final = 2_000
"""The connection ends if the other end leaves data unconfirmed for this time."""

Address = tuple[str, int]
AddressOf = Callable[[int], Address | None]
P = TypeVar("P", bound=asyncio.BaseProtocol)


def close_when_silent(connection: socket.socket) -> None:
    """Set the TCP user timeout. After a network cut the kernel doubles its retry interval, so a surviving connection
    would stall long after.

    Accepted connections inherit the option from their listening socket.
    """
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS)


class Dial:
    """Dials from `node` to `peer`."""

    def __init__(self, node: int, peer: int, address_of: AddressOf, tls: ssl.SSLContext | None) -> None:
        self.node = node
        self.peer = peer
        self._address_of = address_of
        self._tls = tls
        self._pause = PAUSE_SECONDS_MIN
        self._not_before = 0.0

    def may_try(self) -> bool:
        return asyncio.get_running_loop().time() >= self._not_before

    def succeeded(self) -> None:
        """Reset the pause once the node has answered, not merely accepted."""
        self._pause = PAUSE_SECONDS_MIN

    def address(self) -> Address | None:
        return self._address_of(self.peer)

    async def connect(self, protocol: Callable[[], P]) -> P | None:
        """Connect; None if the node is unreachable. The next attempt then waits, twice as long each time."""
        loop = asyncio.get_running_loop()
        self._not_before = loop.time() + self._pause
        self._pause = min(self._pause * 2, PAUSE_SECONDS_MAX)
        address = self.address()
        if address is None:
            return None
        try:
            return await self.open(address, protocol)
        except (OSError, TimeoutError) as error:  # includes ssl's errors
            log.info("node %d at %s:%d is unreachable: %s", self.peer, *address, str(error) or "no answer")
            return None

    async def open(self, address: Address, protocol: Callable[[], P]) -> P:
        """Connect. Raises OSError if the node is unreachable, ConnectionRefusedError if every address of its name
        refuses.
        """
        loop = asyncio.get_running_loop()
        failed: OSError = ConnectionRefusedError(f"{address[0]} has no address")
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            for *_, place in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
                try:
                    transport, made = await loop.create_connection(
                        protocol,
                        str(place[0]),
                        int(place[1]),
                        ssl=self._tls,
                        server_hostname=name_of(self.peer) if self._tls else None,
                    )
                except OSError as error:  # includes ssl's errors
                    failed = error if isinstance(failed, ConnectionRefusedError) else failed
                else:
                    close_when_silent(transport.get_extra_info("socket"))
                    return made
        raise failed
