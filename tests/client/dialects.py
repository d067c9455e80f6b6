"""What the client's tests share: each dialect as a column of the capability table, the blocking face behind asyncio's calls."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import braidlog
from braidlog import aio
from braidlog.client import blocking
from braidlog.client.schemes import capabilities
from braidlog.testing.server import ServerProcess

COLUMNS = list(capabilities())
FACES = ["asyncio", "blocking"]
SECONDS_MAX = 60.0

_numbers = itertools.count()


def dialect_of(column: str) -> str:
    return column.partition("?")[0]


def url_of(column: str, port: int) -> str:
    dialect, mark, query = column.partition("?")
    return f"{dialect}://127.0.0.1:{port}{mark}{query}"


def server_url(column: str, server: ServerProcess) -> str:
    return url_of(column, server.ports[dialect_of(column)])


def fresh(word: str = "t") -> str:
    """A name that no other test has."""
    return f"{word}-{next(_numbers)}-{id(_numbers):x}"


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine; every wait in it has this deadline at least."""

    async def bounded() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await test()

    asyncio.run(bounded())


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait on a condition; the deadline is the test's."""
    try:
        while not condition():  # noqa: ASYNC110 - a condition of any kind, which sets no event
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        raise AssertionError(f"never: {what}") from None


class Blocked:
    """A blocking object whose calls can be awaited: they run in threads."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("producer", "consumer"):
            return lambda **options: Blocked(found(**options))
        if name == "admin":
            return Blocked(found)
        if not callable(found) or name == "position":
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            result = await asyncio.to_thread(found, *arguments, **options)
            return _blocked(result)

        return call

    def __await__(self) -> Any:
        return asyncio.to_thread(self._inner.result).__await__()


def _blocked(result: Any) -> Any:
    if isinstance(result, blocking.Delivery):
        return Blocked(result)
    if isinstance(result, list) and result and isinstance(result[0], blocking.Delivery):
        return [Blocked(each) for each in result]
    return result


@asynccontextmanager
async def connected(face: str, url: str, **policy: Any) -> AsyncIterator[Any]:
    if face == "asyncio":
        async with aio.connect(url, **policy) as client:
            yield client
        return
    blocked = await asyncio.to_thread(lambda: braidlog.connect(url, **policy))
    try:
        yield Blocked(blocked)
    finally:
        await asyncio.to_thread(blocked.close)


async def read(client: Any, topic: str, count: int, **options: Any) -> list[aio.ConsumedRecord]:
    """`count` records of a topic from its beginning, which are all."""
    found = await _read_on(client, topic, count, **options)
    assert len(found) == count
    return found


async def read_all(client: Any, topic: str) -> list[aio.ConsumedRecord]:
    """Every record there is now, and what came while we looked: a request whose connection was cut may still be under way."""
    info = await client.admin.describe_topic(topic)
    return await _read_on(client, topic, sum(span.latest - span.earliest for span in info.partitions))


async def _read_on(client: Any, topic: str, count: int, **options: Any) -> list[aio.ConsumedRecord]:
    consumer = client.consumer(wait_ms=100)
    await consumer.assign(topic, **options)
    found: list[aio.ConsumedRecord] = []
    while len(found) < count:
        found += await consumer.poll(timeout=5)
    await consumer.close()
    return found
