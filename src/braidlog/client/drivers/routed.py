"""Routing that all drivers share: which node to ask, over which connection.

Does not handle: messages. A request goes to the last known leader, else to the first node of the URL that answers. An
unreachable node is dropped as leader.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from braidlog.client.drivers.contract import Driver
from braidlog.client.drivers.link import ConnectionWire, Endpoint, Link, Links
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import Address, ConnectError, RefusedError, SignInError
from braidlog.client.schemes import Target
from braidlog.wire.preamble import write_introduction

CONTROL, PRODUCE = "control", "produce"
FETCH_CHANNELS_MAX = 8
"""The number of connections for long polls; more partitions than this share them."""


def fetch_channel(slot: int) -> str:
    return f"fetch-{slot % FETCH_CHANNELS_MAX}"


class RoutedDriver(Driver):
    """A driver over links."""

    def __init__(
        self,
        target: Target,
        policy: Policy,
        tls: ssl.SSLContext | None,
        make_wire: Callable[[], ConnectionWire],
        greet: Callable[[Link], Awaitable[None]] | None = None,
    ) -> None:
        if greet is None and target.principal is not None:
            greet = self.introduce
            write_introduction(target.principal, target.token or "")  # raises now for characters that it cannot carry
        self._target = target
        self._policy = policy
        self._nodes = list(target.nodes)
        self._leaders: dict[tuple[str, int], Address] = {}
        self._links = Links(Endpoint(make_wire, policy.connect_timeout, tls, greet))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._target}>"

    async def introduce(self, link: Link) -> None:
        """Authenticate with the line that a node accepts before the first frame of any dialect, and check that it
        succeeded."""
        link.introduce(write_introduction(self._target.principal or "", self._target.token or ""))
        try:
            self.checked(await link.ask(self.greeting(), self._policy.connect_timeout))
        except RefusedError as error:
            raise SignInError(self.name, error.code, error.words) from error

    def greeting(self) -> Any:  # noqa: ANN401 - a request of the dialect
        """Return the first request after authentication: one that every authenticated client may send."""
        raise NotImplementedError

    @property
    def home(self) -> Address:
        """The node for requests that any node can answer."""
        return self._nodes[0]

    def leader(self, topic: str, partition: int) -> Address:
        return self._leaders.get((topic, partition), self.home)

    async def ask(self, message: Any, at: Address | None = None, channel: str = CONTROL, waits_ms: int = 0) -> Any:  # noqa: ANN401
        """Send one request and return its answer. `waits_ms`: how long the server may take by the request itself."""
        async with self.reaching(at or self.home, channel) as link:
            return await link.ask(message, self._policy.request_timeout + waits_ms / 1000)

    async def ask_checked(
        self,
        message: Any,  # noqa: ANN401
        at: Address | None = None,
        channel: str = CONTROL,
        waits_ms: int = 0,
    ) -> Any:  # noqa: ANN401
        """Send one request; raise if its answer is a refusal."""
        return self.checked(await self.ask(message, at, channel, waits_ms))

    def checked(self, answer: Any) -> Any:  # noqa: ANN401 - any answer
        """Return the answer; raise if it is a refusal."""
        return answer

    async def ask_all(self, messages: Sequence[Any], at: Address | None = None, channel: str = CONTROL) -> list[Any]:
        async with self.reaching(at or self.home, channel) as link:
            return await link.ask_all(messages, self._policy.request_timeout)

    @asynccontextmanager
    async def reaching(self, address: Address, channel: str) -> AsyncIterator[Link]:
        """Provide a connection to a node; if the connection fails, the node is marked as unreachable."""
        try:
            yield await self._links.get(address, channel)
        except ConnectError:
            self.unreachable(address)
            raise

    def unreachable(self, address: Address) -> None:
        """Drop an unreachable node: the next attempt uses another node of the URL, if there is one."""
        for place in [place for place, leader in self._leaders.items() if leader == address]:
            del self._leaders[place]
        if address == self.home:
            self._nodes.append(self._nodes.pop(0))

    async def connect(self) -> None:
        async with self.reaching(self.home, CONTROL):
            pass

    def close(self) -> None:
        self._links.close()
