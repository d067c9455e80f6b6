"""A member of a group: it joins, is heard of, joins again, leaves.

Knows: generations and what a new one means for the partitions held. Refuses to know: records, commits.
Invariant: a partition keeps its place through a rebalance only if it was this member's in two generations that follow each other:
else somebody else may have had it in between, and it begins anew where the group has committed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Literal, Protocol

from braidlog.client.drivers.contract import Driver, Membership
from braidlog.client.engine.retry import Policy, retry, wait_at_most
from braidlog.client.errors import ClientError, Refusal, RefusedError

Place = tuple[str, int]
Start = Literal["earliest", "latest"] | int | datetime
"""An end of the log, an offset, or a time where the dialect can find one."""
Rebalanced = Callable[[frozenset[Place], frozenset[Place]], None]
"""Called with what was lost and what was gained."""

_LEAVE_SECONDS_MAX = 5.0


class MemberOwner(Protocol):
    """The consumer that holds the partitions."""

    def keep_only(self, places: Collection[Place]) -> frozenset[Place]: ...

    async def gain(self, places: Collection[Place], start: Start) -> frozenset[Place]: ...

    def stopped(self, error: ClientError) -> None: ...


class Member:
    """`who` is group, topic and the member's own name."""

    def __init__(
        self,
        owner: MemberOwner,
        driver: Driver,
        policy: Policy,
        who: tuple[str, str, str],
        *,
        start: Start,
        on_rebalance: Rebalanced | None,
    ) -> None:
        self._owner = owner
        self._driver = driver
        self._policy = policy
        self._who = who
        self._start = start
        self._on_rebalance = on_rebalance
        self._again = asyncio.Event()
        self.membership: Membership | None = None

    def __repr__(self) -> str:
        group, topic, name = self._who
        generation = "not joined" if self.membership is None else f"generation {self.membership.generation}"
        return f"<Member {name} of {group} reading {topic}, {generation}>"

    def rejoin(self) -> None:
        self._again.set()

    async def join(self) -> None:
        """Join, or join again, and hold what the new generation gives."""
        self._again.clear()
        old, new = self.membership, await self._joined()
        places = frozenset((new.topic, partition) for partition in new.partitions)
        follows = old is not None and 0 <= new.generation - old.generation <= 1
        self._again.clear()  # whoever called for it meanwhile was of the generation that is over
        # In one step: whoever commits from here on does so as a member of the new generation, and of nothing it lost.
        self.membership = new
        lost = self._owner.keep_only(places if follows else ())
        gained = await self._owner.gain(places, self._start)
        if self._on_rebalance is not None and (lost or gained):
            self._on_rebalance(lost, gained)

    async def _joined(self) -> Membership:
        # Told to join again while joining: the group changes this very moment.
        return await retry(
            self._policy,
            lambda: self._driver.join(*self._who),
            again=lambda error: error.retriable or _is_rejoin(error),
        )

    async def run(self, heartbeat_seconds: float) -> None:
        """Be heard of; join again whenever the server or a fetcher says so."""
        pause = heartbeat_seconds
        while True:
            await wait_at_most(self._again, pause)
            pause = heartbeat_seconds
            try:
                if self._again.is_set():
                    await self.join()
                elif self.membership is not None:
                    await self._driver.heartbeat(self.membership)
            except ClientError as error:
                if _is_rejoin(error):
                    self._again.set()
                elif error.retriable and not self._again.is_set():
                    pause = heartbeat_seconds / 4  # the session has a deadline of its own: try sooner
                else:
                    self._again.set()
                    self._owner.stopped(error)
                    return

    async def leave(self) -> None:
        """Say goodbye, if that is possible: else the group notices by itself."""
        if self.membership is not None:
            with contextlib.suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS_MAX):
                    await self._driver.leave(self.membership)


def _is_rejoin(error: ClientError) -> bool:
    return isinstance(error, RefusedError) and error.reason is Refusal.REJOIN
