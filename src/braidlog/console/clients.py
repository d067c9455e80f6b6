"""Clients for topics and keys, over listeners of the node that only its console may use.

Knows: the client. Refuses to know: HTTP, how records are shown. Invariants: nothing is connected before somebody looks; every
wait has an end; fetches of different readers do not hold each other up, and no more than `READERS_MAX` read at a time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from braidlog.client.drivers.contract import ConsumedRecord, Fetched, FetchRequest, Placed, Span
from braidlog.client.engine.retry import Policy, retry
from braidlog.client.errors import ClientError
from braidlog.client.kv.client import KeyValue
from braidlog.client.schemes import make_driver, parse_url
from braidlog.client.session import Client
from braidlog.model.record import Header

T = TypeVar("T")

READERS_MAX: Final = 32
SECONDS_MAX: Final = 10.0
CACHED_TIMES_MAX: Final = 10_000


class TooManyReaders(Exception):  # noqa: N818 - what it says
    """All places are taken."""


class Clients:
    """The clients of this process, made when somebody first asks."""

    def __init__(self, topics_url: str, keys_url: str) -> None:
        self._policy = Policy(request_timeout=SECONDS_MAX, connect_timeout=SECONDS_MAX, retry_timeout=SECONDS_MAX)
        self._driver = make_driver(parse_url(topics_url), self._policy)
        self._client = Client(
            topics_url, request_timeout=SECONDS_MAX, connect_timeout=SECONDS_MAX, retry_timeout=SECONDS_MAX
        )
        self._producer = self._client.producer()
        self.store = KeyValue(
            keys_url, request_timeout=SECONDS_MAX, connect_timeout=SECONDS_MAX, retry_timeout=SECONDS_MAX
        )
        self._slots = set(range(1, READERS_MAX + 1))
        self._times: dict[tuple[str, int, int], int | None] = {}

    async def close(self) -> None:
        self._driver.close()
        with contextlib.suppress(ClientError):
            await self._client.close()
        await self.store.close()

    # -- topics ----------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, partitions: int) -> None:
        await self._client.admin.create_topic(topic, partitions)

    async def partitions(self, topic: str) -> int:
        return await self._ask(lambda: self._driver.partitions(topic))

    async def span(self, topic: str, partition: int) -> Span:
        return await self._ask(lambda: self._driver.span(topic, partition))

    async def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        return await self._ask(lambda: self._driver.offset_at(topic, partition, time_ms))

    # -- records ---------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def reader(self) -> AsyncIterator["Reader"]:
        """A place to read from, for as long as somebody renderer."""
        if not self._slots:
            raise TooManyReaders(
                f"the console has its limit of {READERS_MAX} readers; close a page that follows a topic"
            )
        slot = self._slots.pop()
        try:
            yield Reader(self, slot)
        finally:
            self._slots.add(slot)

    async def fetch(
        self, topic: str, partition: int, offset: int, *, bytes_max: int, wait_ms: int, slot: int
    ) -> Fetched:
        return await self._ask(
            lambda: self._driver.fetch(FetchRequest(topic, partition, offset, bytes_max, wait_ms, slot))
        )

    async def one(self, topic: str, partition: int, offset: int) -> ConsumedRecord | None:
        """The record at an offset; None if there is none."""
        async with self.reader() as reader:
            fetched = await reader.fetch(topic, partition, offset, bytes_max=1, wait_ms=0)
        found = next(iter(fetched.records), None)
        return found if found is not None and found.offset == offset else None

    async def time_of(self, topic: str, partition: int, offset: int) -> int | None:
        """The time of the first record at or after an offset, remembered: what is in a log does not change."""
        place = (topic, partition, offset)
        if place not in self._times:
            async with self.reader() as reader:
                fetched = await reader.fetch(topic, partition, offset, bytes_max=1, wait_ms=0)
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
        async with asyncio.timeout(SECONDS_MAX):
            return await self._producer.send_and_wait(topic, value, key=key, headers=headers, partition=partition)

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(self._policy, call)


class Reader:
    """Somebody who reads, on a connection of their own."""

    def __init__(self, clients: Clients, slot: int) -> None:
        self._clients = clients
        self._slot = slot

    async def fetch(self, topic: str, partition: int, offset: int, *, bytes_max: int, wait_ms: int) -> Fetched:
        return await self._clients.fetch(
            topic, partition, offset, bytes_max=bytes_max, wait_ms=wait_ms, slot=self._slot
        )
