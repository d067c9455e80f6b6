"""Connection of the console to its node: requests over a private socket, recent snapshots, rates.

Does not handle: HTTP. Invariants: the node is sent at most one snapshot request per second, for any number of
viewers. Every request ends with an answer, a rejection or a deadline. An answer without a waiter is dropped.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any, Final, TypeVar

import msgspec

from braidlog.console.cluster_view import merged, others_of
from braidlog.model.reporting.node_report import (
    DOOR,
    Connections,
    EventReport,
    Keys,
    NodeLog,
    Permission,
    Question,
    Reply,
    Roles,
    SchemaPage,
    SettingReport,
    Snapshot,
    WatchedPiece,
    Welcome,
)

T = TypeVar("T")

ANSWER_SECONDS_MAX: Final = 5.0
SCHEMA_SECONDS_MAX: Final = 30.0
"""Timeout of requests that wait for replicas, an election or the delay of a wrong password."""
COMPARE_SECONDS_MAX: Final = 60.0
"""Timeout of schema comparisons, longer than their queueing and computation limits."""
SIGN_IN_SECONDS_MAX: Final = 60.0
ROLES_SECONDS: Final = 1.0
ROLES_MAX: Final = 1_000
FRESH_SECONDS: Final = 1.0
KEPT_SNAPSHOTS: Final = 12
RATE_SECONDS: Final = 5.0
WATCHED_PIECES_MAX: Final = 1_000

_replies = msgspec.json.Decoder(Reply)
_welcomes = msgspec.json.Decoder(Welcome)
_encode = msgspec.json.Encoder().encode


class NodeError(Exception):
    """The node does not answer, or refuses; `reason` as the node names it, or ""."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class SlowNodeError(NodeError):
    """The node did not answer in time; its state is unknown."""


Watched = WatchedPiece | NodeError | None
"""A piece of a connection; or that the connection cannot be watched; or that the node has stopped."""


class Snapshots:
    """Snapshots of one kind, at most one a second for all callers; keeps the last ones."""

    def __init__(self, take: Callable[[], Awaitable[Snapshot]]) -> None:
        self._take = take
        self._asking: asyncio.Future[Snapshot] | None = None
        self._taken: deque[tuple[float, Snapshot]] = deque(maxlen=KEPT_SNAPSHOTS)

    async def now(self) -> Snapshot:
        """Return a snapshot that is at most a second old. Concurrent callers share one request."""
        now = asyncio.get_running_loop().time()
        if self._taken and now - self._taken[-1][0] < FRESH_SECONDS:
            return self._taken[-1][1]
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(self._taken_or_not)
        return await asyncio.shield(self._asking)

    async def later(self, than: Snapshot) -> Snapshot:
        """Return a snapshot taken after `than`, to find something that was just created."""
        found = await self.now()
        while found.taken_ms <= than.taken_ms:
            await asyncio.sleep(FRESH_SECONDS / 4)
            found = await self.now()
        return found

    async def _ask(self) -> Snapshot:
        snapshot = await self._take()
        self._taken.append((asyncio.get_running_loop().time(), snapshot))
        return snapshot

    def _taken_or_not(self, asking: "asyncio.Future[Snapshot]") -> None:
        self._asking = None
        if not asking.cancelled():
            asking.exception()  # callers have received it

    def earlier(self) -> Snapshot | None:
        """Return a snapshot some seconds older than the last one, to compute rates."""
        if len(self._taken) < 2:
            return None
        last = self._taken[-1][1].taken_ms
        older = [taken for _, taken in self._taken if last - taken.taken_ms >= RATE_SECONDS * 1000]
        return older[-1] if older else self._taken[0][1]


class Node:
    """The node of this process. `run` returns when the node has stopped."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: Welcome) -> None:
        self._reader = reader
        self._writer = writer
        self.welcome = welcome
        self.gone = asyncio.Event()
        """Set when the node has stopped."""
        self._ids = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._watched: dict[int, asyncio.Queue[Watched]] = {}
        self._roles: dict[str, tuple[float, Roles]] = {}
        self._own = Snapshots(self._take)
        self.cluster = Snapshots(self._take_all)
        """Snapshots of this node with partitions, groups and lags of all nodes that answer."""

    @classmethod
    async def meet(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> "Node | None":
        """Read the welcome; None if the node stopped before it sent one."""
        line = await reader.readline()
        return cls(reader, writer, _welcomes.decode(line)) if line.endswith(b"\n") else None

    async def run(self) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                self._received(_replies.decode(line))
        self.gone.set()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(NodeError("the node has stopped"))
        for queue in self._watched.values():
            _offer(queue, None)

    def _received(self, reply: Reply) -> None:
        queue = self._watched.get(reply.id)
        if queue is None:
            self._settle(reply)
        else:
            _offer(queue, NodeError(reply.error) if reply.error else msgspec.convert(reply.event, WatchedPiece))

    def _settle(self, reply: Reply) -> None:
        future = self._asked.pop(reply.id, None)
        if future is None or future.done():
            return
        if reply.error is not None:
            future.set_exception(NodeError(reply.error, reply.reason))
        else:
            future.set_result(reply.answer)

    async def _ask(self, kind: type[T], *, seconds: float = ANSWER_SECONDS_MAX, **question: Any) -> T:  # noqa: ANN401
        if self.gone.is_set():
            raise NodeError("the node has stopped")
        number = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        self._writer.write(_encode(Question(number, **question)) + b"\n")
        try:
            async with asyncio.timeout(seconds):
                return msgspec.convert(await future, kind, str_keys=True)  # JSON has no other keys
        except TimeoutError as error:
            raise SlowNodeError(f"the node did not answer in {seconds:g} s") from error
        finally:
            self._asked.pop(number, None)

    # -- requests --------------------------------------------------------------------------------------------

    async def _take(self) -> Snapshot:
        return await self._ask(Snapshot, ask="snapshot")

    async def _take_all(self) -> Snapshot:
        own = await self.snapshot()
        others = others_of(own)
        reports = await asyncio.gather(*map(self._report_of, others))
        return merged(own, dict(zip(others, reports, strict=True)))

    async def _report_of(self, node: int) -> NodeLog | Exception:
        try:
            found: NodeLog = await self._ask(NodeLog, ask="snapshot", node=node)
        except (NodeError, msgspec.ValidationError) as error:
            return error
        return found

    async def snapshot(self) -> Snapshot:
        """Return a snapshot of this node, at most a second old."""
        return await self._own.now()

    async def settings(self) -> list[SettingReport]:
        return await self._ask(list[SettingReport], ask="settings")

    async def connections(self) -> Connections:
        return await self._ask(Connections, ask="connections")

    async def events(self, topic: str = "", partition: int = -1) -> list[EventReport]:
        """Return recent events of the cluster or of one partition, newest first."""
        return await self._ask(list[EventReport], ask="events", topic=topic, partition=partition)

    async def keys(self, prefix: bytes, position: int) -> Keys:
        """Return a page of keys of this node."""
        return await self._ask(Keys, ask="keys", prefix=prefix, position=position)

    async def schemas(self, topic_id: str, offset: int) -> SchemaPage:
        return await self._ask(SchemaPage, ask="schemas", topic=topic_id, position=offset, seconds=SCHEMA_SECONDS_MAX)

    async def append_schemas(self, topic_id: str, offset: int, entries: list[tuple[bytes, bytes | None]]) -> SchemaPage:
        return await self._ask(
            SchemaPage,
            ask="append_schemas",
            topic=topic_id,
            position=offset,
            entries=entries,
            seconds=SCHEMA_SECONDS_MAX,
        )

    async def compare_schemas(self, task: bytes) -> list[str]:
        """Return the result of a task of `registry/compatibility.py`."""
        return await self._ask(list[str], ask="compare_schemas", payload=task, seconds=COMPARE_SECONDS_MAX)

    async def may(
        self, principal: str, password: str, address: str, wishes: list[tuple[str, str | None]]
    ) -> Permission:
        """Authenticate a principal, and return which operations it may do."""
        return await self._ask(
            Permission,
            ask="may",
            principal=principal,
            password=password,
            address=address,
            wishes=wishes,
            seconds=SCHEMA_SECONDS_MAX,
        )

    async def may_here(self, principal: str, operation: str, topic: str) -> bool:
        """Return whether a signed-in principal may do an operation on a topic."""
        wishes = [(operation, topic)]
        found = await self._ask(Permission, ask="may", principal=principal, wishes=wishes, door=DOOR)
        return found.is_known and all(found.allowed)

    async def roles(self, principal: str) -> Roles:
        """Return the roles of a principal, at most `ROLES_SECONDS` old."""
        now = asyncio.get_running_loop().time()
        known = self._roles.get(principal)
        if known is None or now - known[0] > ROLES_SECONDS:
            if len(self._roles) >= ROLES_MAX:
                self._roles.clear()
            known = self._roles[principal] = (now, await self._ask(Roles, ask="roles", principal=principal))
        return known[1]

    async def sign_in(self, principal: str, secret: str, address: str) -> bool:
        """Authenticate a principal. The answer to a wrong secret is delayed, as on every other listener."""
        return await self._ask(
            bool, ask="sign_in", principal=principal, password=secret, address=address, seconds=SIGN_IN_SECONDS_MAX
        )

    async def audit(self, principal: str, address: str, words: str, door: str = DOOR) -> None:
        """Write an audit line to the node's log."""
        await self._ask(bool, ask="audit", principal=principal, address=address, words=words, door=door)

    async def watch(self, connection: int) -> AsyncIterator[WatchedPiece]:
        """Yield the bytes of a connection, until it closes or the caller stops."""
        number = next(self._ids)
        queue = self._watched[number] = asyncio.Queue(WATCHED_PIECES_MAX)
        self._writer.write(_encode(Question(number, "watch", connection=connection)) + b"\n")
        try:
            while (piece := await queue.get()) is not None:
                if isinstance(piece, NodeError):
                    raise piece
                yield piece
                if piece.is_closed:
                    return
        finally:
            del self._watched[number]
            if not self._writer.is_closing():
                self._writer.write(_encode(Question(next(self._ids), "unwatch", connection=number)) + b"\n")


def _offer(queue: "asyncio.Queue[Watched]", piece: Watched) -> None:
    """Queue a piece; drop the oldest if the queue is full, so that the end always arrives."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(piece)


def rate(now: int, before: int, seconds: float) -> float:
    """Return the rate of a counter per second; handles a counter that restarted at 0."""
    return max(now - before, 0) / seconds if seconds > 0 else 0.0
