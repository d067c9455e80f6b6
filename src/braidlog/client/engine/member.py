"""A member of a group: it joins, is heard of, joins again, leaves.

Knows: generations and what a new one means for the partitions held. Refuses to know: records, commits.
Invariant: a partition keeps its place through a rebalance only if it was this member's in two generations that follow each other:
else somebody else may have had it in between, and it begins anew where the group has committed.
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
"""Called with what is held, before the member joins again: it can still be committed."""
Rebalanced = Callable[[frozenset[Place], frozenset[Place]], Awaitable[object] | None]
"""Called with what was lost and what was gained."""

_LEAVE_SECONDS_MAX = 5.0
_PATTERN = frozenset("*?[")


class Subscription(NamedTuple):
    """What a member wants: topics, by their names or by patterns (`orders-*`), from where on, and who is told of changes."""

    group: str
    topics: tuple[str, ...]
    who: MemberName
    start: Start
    before_rebalance: Leaving | None = None
    on_rebalance: Rebalanced | None = None


def is_pattern(topic: str) -> bool:
    return not _PATTERN.isdisjoint(topic)


async def matching(driver: Driver, policy: Policy, topics: Sequence[str]) -> tuple[str, ...]:
    """The topics of these names and patterns, each once. A name need not be there yet."""
    found = [topic for topic in topics if not is_pattern(topic)]
    patterns = [topic for topic in topics if is_pattern(topic)]
    if patterns:
        there = await retry(policy, driver.list_topics)
        found += [topic for topic in there if any(fnmatchcase(topic, pattern) for pattern in patterns)]
    return tuple(dict.fromkeys(found))


class Member:
    """One member of one group."""

    def __init__(self, owner: "Consumer", driver: Driver, policy: Policy, wanted: Subscription) -> None:
        self._owner = owner
        self._driver = driver
        self._policy = policy
        self._wanted = wanted
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
        """Join, or join again, and hold what the new generation gives."""
        self._again.clear()
        old = self.membership
        if self._wanted.before_rebalance is not None and old is not None:
            await _await_callback(self._wanted.before_rebalance(self._owner.assignment))
        new = await self._joined()
        self.joins += 1
        places = frozenset(new.places)
        follows = old is not None and 0 <= new.generation - old.generation <= 1
        self._again.clear()  # whoever called for it meanwhile was of the generation that is over
        # In one step: whoever commits from here on does so as a member of the new generation, and of nothing it lost.
        self.membership = new
        lost = self._owner.keep_only(places if follows else ())
        gained = await self._owner.gain(places, self._wanted.start)
        if self._wanted.on_rebalance is not None and (lost or gained):
            await _await_callback(self._wanted.on_rebalance(lost, gained))

    async def _joined(self) -> Membership:
        topics = await matching(self._driver, self._policy, self._wanted.topics)
        # Told to join again while joining: the group changes this very moment.
        return await retry(
            self._policy,
            lambda: self._driver.join(self._wanted.group, topics, self._wanted.who),
            again=lambda error: error.retriable or _is_rejoin(error),
        )

    async def run(self, heartbeat_seconds: float, patterns_seconds: float) -> None:
        """Be heard of; join again whenever the server or a fetcher says so, or another topic matches a pattern."""
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
                    pause = heartbeat_seconds / 4  # the session has a deadline of its own: try sooner
                else:
                    self._again.set()
                    self._owner.stopped(error)
                    return

    async def _look_for_topics(self) -> None:
        assert self.membership is not None
        if await matching(self._driver, self._policy, self._wanted.topics) != self.membership.topics:
            self._again.set()

    async def leave(self) -> None:
        """Say goodbye, if that is possible: else the group notices by itself."""
        if self.membership is not None:
            with contextlib.suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS_MAX):
                    await self._driver.leave(self.membership)


async def _await_callback(answer: Awaitable[object] | None) -> None:
    """A callback may be a plain function or a coroutine's."""
    if isawaitable(answer):
        await answer


def _is_rejoin(error: ClientError) -> bool:
    return isinstance(error, RefusedError) and error.reason is Refusal.REJOIN
