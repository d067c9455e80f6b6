"""One node's end of the port for records, on loopback: it keeps what it was told, and answers only if the test says so."""

import asyncio
import functools
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Self

from braidlog.adapters.peers.replica_messages import Place
from braidlog.codec.batch.records import encode_batch
from braidlog.model.clock import SystemClock
from braidlog.replication.messages import Batch, Fetch, Fetched
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.server.net.connection_limits import ConnectionLimits, SessionLimits
from braidlog.server.net.listener import Listener
from braidlog.server.net.memory_budget import Budget
from braidlog.server.peers.replica_fetch import ReplicaPeers
from braidlog.storage.group_commit import Flusher

SECONDS_MAX = 60
PLACE: Place = (b"0123456789abcdef", 0)

Addresses = dict[int, tuple[str, int]]


def play(scene: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on a loop, with a deadline."""

    @functools.wraps(scene)
    def run(*arguments: Any, **named: Any) -> None:
        async def with_deadline() -> None:
            async with asyncio.timeout(SECONDS_MAX):
                await scene(*arguments, **named)

        asyncio.run(with_deadline())

    return run


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for knows of no event
        await asyncio.sleep(0.001)


class Station:
    """`heard` is everything that came, as (node, place, message); `answer` is called with each question."""

    def __init__(
        self,
        node: int,
        addresses: Addresses,
        *,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        **options: Any,
    ) -> None:
        self.node = node
        self._addresses = addresses
        self._flusher = Flusher(SystemClock())
        self.heard: list[tuple[int, Place, Any]] = []
        self.answer: Callable[[int, Place, Any], None] = lambda *_: None
        self.peers = ReplicaPeers(
            node,
            EventLoopRuntime(SystemClock(), self._flusher),
            self._received,
            addresses.get,
            tls=client_tls,
            **options,
        )
        self._server_tls = server_tls
        self.listener: Listener | None = None

    def _received(self, node: int, place: Place, message: Any) -> None:
        self.heard.append((node, place, message))
        self.answer(node, place, message)

    @property
    def messages(self) -> list[Any]:
        return [message for _, _, message in self.heard]

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def listen(self, port: int = 0) -> None:
        self.listener = Listener(
            self.peers.adapter,
            session_limits=SessionLimits(),
            connection_limits=ConnectionLimits(),
            budget=Budget(2**30),
            tls=self._server_tls,
        )
        await self.listener.start("127.0.0.1", port)
        self._addresses[self.node] = "127.0.0.1", self.listener.port

    async def __aexit__(self, *_: object) -> None:
        await self.peers.stop()
        assert self.listener is not None
        await self.listener.stop(0)
        self._flusher.stop()


def question(offset: int = 0, *, epoch: int = 3, node: int = 2, leader: int = 1) -> Fetch:
    return Fetch(node, 42, leader, epoch, offset, 1 if offset else -1, 0)


def batch(base: int, *values: bytes, epoch: int = 3) -> Batch:
    data = bytearray(encode_batch(list(values), base_timestamp=0))
    data[0:8] = base.to_bytes(8, "big")
    data[12:16] = epoch.to_bytes(4, "big")
    return Batch(base, base + len(values), epoch, bytes(data))


def fetched(asked: Fetch, *batches: Batch) -> Fetched:
    return Fetched(asked, batches, 7, 1, 5)
