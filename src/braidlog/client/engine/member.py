"""A group member: joins, sends heartbeats, rejoins, leaves.

Does not handle: records, commits. A partition keeps its position through a rebalance only if this member owned it in
two consecutive generations. Otherwise another member may have owned it in between, and reading restarts at the
group's committed offset.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from inspect import isawaitable
from typing import TYPE_CHECKING, NamedTuple

from braidlog.client.drivers.contract import Driver, MemberName, Membership
from braidlog.client.engine.retry import Policy, retry, wait_at_most
from braidlog.client.engine.starts import Place, Start
from braidlog.client.errors import ClientError, Refusal, RefusedError

if TYPE_CHECKING:
    from braidlog.client.engine.consumer import Consumer

Leaving = Callable[[frozenset[Place]], Awaitable[object] | None]
"""Called with the assigned partitions before the member rejoins, while they can still be committed."""
Rebalanced = Callable[[frozenset[Place], frozenset[Place]], Awaitable[object] | None]
"""Called with the lost and the gained partitions."""

_LEAVE_SECONDS_MAX = 5.0
_PATTERN = frozenset("*?[")


class Subscription(NamedTuple):
    """A subscription: topics by name or pattern (`orders-*`), where to start, and the rebalance callbacks."""

    group: str
    topics: tuple[str, ...]
    who: MemberName
    start: Start
    before_rebalance: Leaving | None = None
    on_rebalance: Rebalanced | None = None


def is_pattern(topic: str) -> bool:
    return not _PATTERN.isdisjoint(topic)


async def matching(driver: Driver, policy: Policy, topics: Sequence[str]) -> tuple[str, ...]:
    """Return the topics that match these names and patterns, without duplicates. A named topic need not exist yet."""
    matches = [topic for topic in topics if not is_pattern(topic)]
    patterns = [topic for topic in topics if is_pattern(topic)]
    if patterns:
        there = await retry(policy, driver.list_topics)
        matches += [topic for topic in there if any(fnmatchcase(topic, pattern) for pattern in patterns)]
    return tuple(dict.fromkeys(matches))


class Member:
    """One member of one group."""

    def __init__(self, owner: "Consumer", driver: Driver, policy: Policy, subscription: Subscription) -> None:
        self._owner = owner
        self._driver = driver
        self._policy = policy
        self._wanted = subscription
        self._again = asyncio.Event()
        self.membership: Membership | None = None
        self.joins = 0

    def __repr__(self) -> str:
        group, topics, who, *_ = self._wanted
        generation = "not joined" if self.membership is None else f"generation {self.membership.generation}"
        return f"<Member {who.name} of {group} reading {', '.join(topics)}, {generation}>"

    def rejoin(self) -> None:
        self._again.set()

    async def join(self) -> None:
        """Join or rejoin the group, and adopt the assignment of the new generation."""
        self._again.clear()
        old = self.membership
        if self._wanted.before_rebalance is not None and old is not None:
            await _await_callback(self._wanted.before_rebalance(self._owner.assignment))
        new = await self._joined()
        self.joins += 1
        places = frozenset(new.places)
        follows = old is not None and 0 <= new.generation - old.generation <= 1
        self._again.clear()  # a request to rejoin during the join was about the previous generation
        # Without an await: commits from here on belong to the new generation, and exclude lost partitions.
        self.membership = new
        lost = self._owner.keep_only(places if follows else ())
        gained = await self._owner.gain(places, self._wanted.start)
        if self._wanted.on_rebalance is not None and (lost or gained):
            await _await_callback(self._wanted.on_rebalance(lost, gained))

    async def _joined(self) -> Membership:
        topics = await matching(self._driver, self._policy, self._wanted.topics)
        # The server requested another rejoin during the join: the group is still changing.
        return await retry(
            self._policy,
            lambda: self._driver.join(self._wanted.group, topics, self._wanted.who),
            again=lambda error: error.retriable or _is_rejoin(error),
        )

    async def run(self, heartbeat_seconds: float, patterns_seconds: float) -> None:
        """Send heartbeats; rejoin when the server or a fetcher requests it, or when a new topic matches a pattern."""
        loop = asyncio.get_running_loop()
        pause = heartbeat_seconds
        looked = loop.time()
        while True:
            await wait_at_most(self._again, pause)
            pause = heartbeat_seconds
            try:
                if self._again.is_set():
                    await self.join()
                elif self.membership is not None:
                    await self._driver.heartbeat(self.membership)
                if loop.time() - looked >= patterns_seconds and any(map(is_pattern, self._wanted.topics)):
                    looked = loop.time()
                    await self._look_for_topics()
            except ClientError as error:
                if _is_rejoin(error):
                    self._again.set()
                elif error.retriable and not self._again.is_set():
                    pause = heartbeat_seconds / 4  # the session expires independently: retry sooner
                else:
                    self._again.set()
                    self._owner.stopped(error)
                    return

    async def _look_for_topics(self) -> None:
        assert self.membership is not None
        if await matching(self._driver, self._policy, self._wanted.topics) != self.membership.topics:
            self._again.set()

    async def leave(self) -> None:
        """Leave the group if the server is reachable; otherwise the session expires."""
        if self.membership is not None:
            with contextlib.suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS_MAX):
                    await self._driver.leave(self.membership)


async def _await_callback(answer: Awaitable[object] | None) -> None:
    """Call back a plain function or a coroutine function."""
    if isawaitable(answer):
        await answer


def _is_rejoin(error: ClientError) -> bool:
    return isinstance(error, RefusedError) and error.reason is Refusal.REJOIN
