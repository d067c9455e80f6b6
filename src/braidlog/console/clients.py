"""Clients for topics and keys, over listeners of the node that only its console may use.

Knows: the client. Refuses to know: HTTP, how records are shown. Invariants: nothing is connected before somebody looks; every
wait has an end; fetches of different readers do not hold each other up, and no more than `READERS_MAX` read at a time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final

from braidlog.client.drivers.contract import ConsumedRecord, Fetched, FetchRequest, Placed
from braidlog.client.engine.admin import Admin
from braidlog.client.engine.options import ProducerOptions
from braidlog.client.engine.producer import Producer
from braidlog.client.engine.retry import Policy, retry
from braidlog.client.errors import ClientError
from braidlog.client.kv.client import KeyValue
from braidlog.client.schemes import make_driver, parse_url
from braidlog.model.record import Header

Fetch = Callable[[str, int, int, int], Awaitable[Fetched]]
"""Records of a topic, a partition, from an offset on, of about so many bytes: those that are there."""

READERS_MAX: Final = 32
SECONDS_MAX: Final = 10.0
CACHED_TIMES_MAX: Final = 10_000


class TooManyReaders(Exception):  # noqa: N818 - what it says
    """All places are taken."""


class Clients:
    """The clients of this process, made when somebody first asks."""

    def __init__(self, topics_url: str, keys_url: str) -> None:
        seconds: dict[str, Any] = dict.fromkeys(("request_timeout", "connect_timeout", "retry_timeout"), SECONDS_MAX)
        self._policy = Policy(**seconds)
        self._driver = make_driver(parse_url(topics_url), self._policy)
        self._producer = Producer(self._driver, self._policy, ProducerOptions())
        self.admin = Admin(self._driver, self._policy)
        self.store = KeyValue(keys_url, **seconds)
        self._slots = set(range(1, READERS_MAX + 1))
        self._times: dict[tuple[str, int, int], int | None] = {}

    async def close(self) -> None:
        with contextlib.suppress(ClientError):
            await self._producer.close()
        self._driver.close()
        await self.store.close()

    # -- records ---------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def reader(self) -> AsyncIterator[Fetch]:
        """A place to read from, for as long as somebody looks."""
        if not self._slots:
            raise TooManyReaders(
                f"the console has its limit of {READERS_MAX} readers; close a page that follows a topic"
            )
        slot = self._slots.pop()
        try:
            yield partial(self._fetch, slot)
        finally:
            self._slots.add(slot)

    async def _fetch(self, slot: int, topic: str, partition: int, offset: int, bytes_max: int) -> Fetched:
        wanted = FetchRequest(topic, partition, offset, bytes_max, wait_ms=0, slot=slot)
        return await retry(self._policy, lambda: self._driver.fetch(wanted))

    async def one(self, topic: str, partition: int, offset: int) -> ConsumedRecord | None:
        """The record at an offset; None if there is none."""
        async with self.reader() as fetch:
            fetched = await fetch(topic, partition, offset, 1)
        found = next(iter(fetched.records), None)
        return found if found is not None and found.offset == offset else None

    async def time_of(self, topic: str, partition: int, offset: int) -> int | None:
        """The time of the first record at or after an offset, remembered: what is in a log does not change."""
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
        async with asyncio.timeout(SECONDS_MAX):
            return await self._producer.send_and_wait(topic, value, key=key, headers=headers, partition=partition)
