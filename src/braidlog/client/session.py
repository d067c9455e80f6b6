"""The client: makes producers, consumers and an admin from a URL.

Closing it closes them first, producers with a flush; the connections close last.
"""

import ssl
from collections.abc import Callable, Generator
from functools import wraps
from itertools import count
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack

import msgspec

from braidlog.client.drivers.contract import Capabilities
from braidlog.client.engine.admin import Admin
from braidlog.client.engine.closing import AsyncConnection
from braidlog.client.engine.consumer import Consumer
from braidlog.client.engine.options import ConsumerKeywords, ConsumerOptions, ProducerKeywords, ProducerOptions
from braidlog.client.engine.producer import Producer
from braidlog.client.engine.retry import Policy, retry
from braidlog.client.schemes import make_driver, parse_url

T = TypeVar("T", bound=msgspec.Struct)


def options_of(kind: type[T], values: dict[str, Any]) -> T:
    """Build settings from keywords; for a wrong name or value, ValueError names the valid ones."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        known = ", ".join(kind.__struct_fields__)
        raise ValueError(f"{error}; there are {known}") from error


class Client(AsyncConnection):
    """A connection to one server or cluster, by `mlog://`, `flux://`, `cursus://`, `rustlog://` or `kafka://`.

    `policy` takes the fields of `Policy`, in seconds.

    async with braidlog.aio.connect("rustlog://127.0.0.1:9096") as client:
        await client.producer().send_and_wait("orders", b"one")

    with braidlog.connect("rustlog://127.0.0.1:9096") as client:
        client.producer().send_and_wait("orders", b"one")
    """

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None, **policy: float) -> None:
        self._target = parse_url(url)
        self._policy = options_of(Policy, policy)
        self._driver = make_driver(self._target, self._policy, tls)
        self._slots = count()
        self._opened: list[Producer | Consumer] = []
        self.admin = Admin(self._driver, self._policy)

    def __repr__(self) -> str:
        return f"<Client {self._target}{' closed' if self._closed else ''}>"

    @property
    def dialect(self) -> str:
        return self._driver.name

    @property
    def capabilities(self) -> Capabilities:
        return self._driver.capabilities

    def require(self, capability: str) -> None:
        """Raise `UnsupportedError`, with the dialects that support it, unless this one has the capability."""
        self._driver.require(capability)

    @property
    def unflushed(self) -> int:
        """The number of records of all its producers without an outcome."""
        return sum(each.unflushed for each in self._opened if isinstance(each, Producer))

    async def asked_for(self) -> list[str]:
        """Return the authentication methods that the server requires if it closes unauthenticated connections; else
        none."""
        return await retry(self._policy, self._driver.asked_for)

    def producer(self, **options: Unpack[ProducerKeywords]) -> Producer:
        """A new producer; see `ProducerOptions` for what can be set."""
        self._check_open()
        producer = Producer(self._driver, self._policy, options_of(ProducerOptions, {**options}))
        self._opened.append(producer)
        return producer

    def consumer(self, **options: Unpack[ConsumerKeywords]) -> Consumer:
        """A new consumer; see `ConsumerOptions` for what can be set."""
        self._check_open()
        consumer = Consumer(self._driver, self._policy, options_of(ConsumerOptions, {**options}), self._slots)
        self._opened.append(consumer)
        return consumer

    async def open(self) -> Self:
        """Check that a server answers."""
        await retry(self._policy, self._driver.connect)
        return self

    async def _finish(self) -> None:
        """Flush and close producers, close consumers; then raise the first failure."""
        failures: list[Exception] = []
        for each in self._opened:
            try:
                await each.close()
            except Exception as error:  # noqa: BLE001 - raised below, when the others are closed too
                failures.append(error)
        if failures:
            raise failures[0]

    def abandon(self) -> None:
        """Stop immediately: what is not acknowledged fails, as closed or as unknown."""
        self._closed = True
        for each in self._opened:
            each.abandon()
        self._driver.close()


C = TypeVar("C", bound=AsyncConnection)
P = ParamSpec("P")


class Connecting(Generic[C]):
    """What `connect` returns: `await` it for a client, or enter it with `async with`."""

    def __init__(self, client: C) -> None:
        self._client = client

    def __await__(self) -> Generator[Any, None, C]:
        return self._client.open().__await__()

    async def __aenter__(self) -> C:
        return await self._client.open()

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()


def connecting(make: Callable[P, C]) -> Callable[P, Connecting[C]]:
    """Return the function `connect` of a client, with the client's parameters."""

    @wraps(make, assigned=("__doc__",))
    def connect(*args: P.args, **named: P.kwargs) -> Connecting[C]:
        return Connecting(make(*args, **named))

    return connect


connect = connecting(Client)
