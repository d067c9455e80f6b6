"""What the drivers share: whom to ask, through which connection.

Knows: the URL's nodes, leaders that were told, channels. Refuses to know: messages.
Invariant: a request goes to who was last said to lead, else to the first node of the URL that answers; a node that cannot be
reached leads nothing.
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
"""Connections that may wait for records; more partitions than this share them."""


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
            write_introduction(target.principal, target.token or "")  # what it cannot carry is told here, not later
        self._target = target
        self._policy = policy
        self._nodes = list(target.nodes)
        self._leaders: dict[tuple[str, int], Address] = {}
        self._links = Links(Endpoint(make_wire, policy.connect_timeout, tls, greet))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._target}>"

    async def introduce(self, link: Link) -> None:
        """Say who we are in the line that a node takes before the first frame of any dialect, and see that we are let in."""
        link.introduce(write_introduction(self._target.principal or "", self._target.token or ""))
        try:
            self.checked(await link.ask(self.greeting(), self._policy.connect_timeout))
        except RefusedError as error:
            raise SignInError(self.name, error.code, error.words) from error

    def greeting(self) -> Any:  # noqa: ANN401 - a request of the dialect
        """What is asked first by who has said who it is: something that everybody who is let in may ask."""
        raise NotImplementedError

    @property
    def home(self) -> Address:
        """The node to ask when nobody in particular is meant."""
        return self._nodes[0]

    def leader(self, topic: str, partition: int) -> Address:
        return self._leaders.get((topic, partition), self.home)

    async def ask(self, message: Any, at: Address | None = None, channel: str = CONTROL, waits_ms: int = 0) -> Any:  # noqa: ANN401
        """One request, one answer. `waits_ms`: how long the server was told that it may take."""
        async with self.reaching(at or self.home, channel) as link:
            return await link.ask(message, self._policy.request_timeout + waits_ms / 1000)

    async def ask_checked(
        self,
        message: Any,  # noqa: ANN401
        at: Address | None = None,
        channel: str = CONTROL,
        waits_ms: int = 0,
    ) -> Any:  # noqa: ANN401
        """The same; an answer that is a refusal is raised."""
        return self.checked(await self.ask(message, at, channel, waits_ms))

    def checked(self, answer: Any) -> Any:  # noqa: ANN401 - any answer
        """The answer, or the refusal that it is, raised."""
        return answer

    async def ask_all(self, messages: Sequence[Any], at: Address | None = None, channel: str = CONTROL) -> list[Any]:
        async with self.reaching(at or self.home, channel) as link:
            return await link.ask_all(messages, self._policy.request_timeout)

    @asynccontextmanager
    async def reaching(self, address: Address, channel: str) -> AsyncIterator[Link]:
        """A connection to it. Who finds out with it that nobody is there need not tell."""
        try:
            yield await self._links.get(address, channel)
        except ConnectError:
            self.unreachable(address)
            raise

    def unreachable(self, address: Address) -> None:
        """Nobody is there: the next attempt goes to another node, if the URL names one."""
        for place in [place for place, leader in self._leaders.items() if leader == address]:
            del self._leaders[place]
        if address == self.home:
            self._nodes.append(self._nodes.pop(0))

    async def connect(self) -> None:
        async with self.reaching(self.home, CONTROL):
            pass

    def close(self) -> None:
        self._links.close()
