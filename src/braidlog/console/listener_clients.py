"""Clients for topics and keys, one for each signed-in user, over private listeners of the node.

The node authorizes every request by its principal. Clients connect at their first request, and every wait has a
timeout. Fetches of different readers do not block each other; at most `READERS_MAX` read at a time.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from braidlog.client.drivers.contract import ConsumedRecord, Fetched, FetchRequest, Placed
from braidlog.client.engine.admin import Admin
from braidlog.client.engine.options import ProducerOptions
from braidlog.client.engine.producer import Producer
from braidlog.client.engine.retry import Policy, retry
from braidlog.client.errors import ClientError, Refusal, RefusedError
from braidlog.client.kv.client import KeyValue
from braidlog.client.schemes import make_driver, parse_url
from braidlog.console.node_client import Node
from braidlog.console.registry.registration import Registering
from braidlog.console.registry.schema_registry import Registry
from braidlog.model.actor import listener_token
from braidlog.model.record import Header

Fetch = Callable[[str, int, int, int], Awaitable[Fetched]]
"""fetch(topic, partition, offset, bytes) → the existing records from the offset, of about this size."""

READERS_MAX: Final = 32
PRINCIPALS_MAX: Final = 32
SECONDS_MAX: Final = 10.0
RELAY_SECONDS: Final = 5.0
CACHED_TIMES_MAX: Final = 10_000
_STATUSES: Final = {Refusal.TOPIC_NOT_FOUND: 404, Refusal.OFFSET_OUT_OF_RANGE: 404, Refusal.NOT_ALLOWED: 403}


class TooManyReaders(Exception):  # noqa: N818 - what it says
    """The limit of readers is reached."""


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    return _STATUSES.get(error.reason, 503) if isinstance(error, RefusedError) else 503


class Clients:
    """The clients of one principal."""

    def __init__(self, topics_url: str, keys_url: str, schemas: Registering, slots: set[int]) -> None:
        seconds: dict[str, Any] = dict.fromkeys(("request_timeout", "connect_timeout", "retry_timeout"), SECONDS_MAX)
        # The node waits this long for another node, and then names it: wait longer than the node.
        self._policy = Policy(**seconds | {"request_timeout": SECONDS_MAX + RELAY_SECONDS})
        self._driver = make_driver(parse_url(topics_url), self._policy)
        self._producer = Producer(self._driver, self._policy, ProducerOptions(delivery_timeout=SECONDS_MAX))
        self.admin = Admin(self._driver, self._policy)
        self.store = KeyValue(keys_url, **seconds)
        self.schemas = schemas
        self._slots = slots
        self._times: dict[tuple[str, int, int], int | None] = {}

    async def close(self) -> None:
        with contextlib.suppress(ClientError):
            await self._producer.close()
        self._driver.close()
        await self.store.close()

    # -- records ---------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def reader(self) -> AsyncIterator[Fetch]:
        """Yield a fetch function; holds one of the reader slots."""
        if not self._slots:
            raise TooManyReaders(f"console limit of {READERS_MAX} readers reached; close a page that follows a topic")
        slot = self._slots.pop()
        try:
            yield partial(self._fetch, slot)
        finally:
            self._slots.add(slot)

    async def _fetch(self, slot: int, topic: str, partition: int, offset: int, bytes_max: int) -> Fetched:
        wanted = FetchRequest(topic, partition, offset, bytes_max, wait_ms=0, slot=slot)
        return await retry(self._policy, lambda: self._driver.fetch(wanted))

    async def one(self, topic: str, partition: int, offset: int) -> ConsumedRecord | None:
        """Return the record at an offset; None if it does not exist."""
        async with self.reader() as fetch:
            fetched = await fetch(topic, partition, offset, 1)
        found = next(iter(fetched.records), None)
        return found if found is not None and found.offset == offset else None

    async def time_of(self, topic: str, partition: int, offset: int) -> int | None:
        """Return the time of the first record at or after an offset; cached, since records do not change."""
        place = (topic, partition, offset)
        if place not in self._times:
            async with self.reader() as fetch:
                fetched = await fetch(topic, partition, offset, 1)
            if len(self._times) >= CACHED_TIMES_MAX:
                self._times.clear()
            self._times[place] = next((record.timestamp_ms for record in fetched.records), None)
        return self._times[place]

    async def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: tuple[Header, ...],
        partition: int | None,
    ) -> Placed:
        async with asyncio.timeout(SECONDS_MAX + RELAY_SECONDS):
            return await self._producer.send_and_wait(topic, value, key=key, headers=headers, partition=partition)


class ClientsOf:
    """The clients of this process by principal, created at their first request; the least recently used are closed."""

    def __init__(self, node: Node, registry: Registry) -> None:
        self._node = node
        self._welcome = node.welcome
        self._registry = registry
        self._slots = set(range(1, READERS_MAX + 1))
        self._made: OrderedDict[str, Clients] = OrderedDict()
        self._closing: set[asyncio.Future[None]] = set()

    def __call__(self, principal: str) -> Clients:
        if principal not in self._made:
            topics_url, keys_url = (
                self._as(principal, url) for url in (self._welcome.topics_url, self._welcome.keys_url)
            )
            schemas = Registering(self._registry, self._node, principal)
            self._made[principal] = Clients(topics_url, keys_url, schemas, self._slots)
            if len(self._made) > PRINCIPALS_MAX:
                closing = asyncio.ensure_future(self._made.popitem(last=False)[1].close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        self._made.move_to_end(principal)
        return self._made[principal]

    def _as(self, principal: str, url: str) -> str:
        scheme, _, place = url.partition("://")
        token = listener_token(self._welcome.door_secret, principal)
        return f"{scheme}://{quote(principal, safe='')}:{token}@{place.rpartition('@')[2]}"

    async def close(self) -> None:
        for clients in self._made.values():
            await clients.close()
