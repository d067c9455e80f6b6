"""The consumer: partitions assigned by hand, or by a group.

Does not handle: dialects, prefetching (`partition_fetcher.py`). Only the offsets of returned records are committed. A
member's commit carries the generation under which it holds the partition, so a member that lost the partition cannot
commit. Records of a lost partition are no longer returned. A partition keeps its position through a rebalance only if
no other member can have owned it during the rebalance.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Self, TypeVar

from braidlog.client.drivers.contract import Commits, ConsumedRecord, Driver, MemberName, Membership
from braidlog.client.drivers.transactions import GroupOffsets
from braidlog.client.engine.closing import AsyncClosing
from braidlog.client.engine.member import Leaving, Member, Rebalanced, Subscription, is_pattern
from braidlog.client.engine.metrics import ConsumerMetrics
from braidlog.client.engine.options import ConsumerOptions
from braidlog.client.engine.partition_fetcher import PartitionFetcher
from braidlog.client.engine.retry import Policy, retry, wait_at_most
from braidlog.client.engine.starts import Place, Start, check_start, offset_of
from braidlog.client.errors import ClientError, Refusal, RefusedError, UnsupportedError
from braidlog.tasks import Tasks

T = TypeVar("T")


class Consumer(AsyncClosing):
    """Made by `client.consumer()`. Then call `assign` or `subscribe`, and `poll` or iterate with `async for`."""

    def __init__(self, driver: Driver, policy: Policy, options: ConsumerOptions, slots: Iterator[int]) -> None:
        self._driver = driver
        self._policy = policy
        self._options = options
        self._slots = slots
        self._fetchers: dict[Place, PartitionFetcher] = {}
        self._turns: list[Place] = []
        self._group: str | None = None
        self._member: Member | None = None
        self._beating: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        self._arrived = asyncio.Event()
        self._failures: list[ClientError] = []
        self._paused: frozenset[Place] = frozenset()
        self._records = self._bytes = self._fetches = 0
        self._is_behind = False
        """Whether records returned since the last commit must be returned again."""
        self._read_as: Membership | None = None
        """The membership under which the oldest uncommitted record was returned."""

    def __repr__(self) -> str:
        places = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(self._fetchers))
        group = f" in group {self._group!r}" if self._group else ""
        return f"<Consumer {self._driver!r}{group}: {places or 'nothing assigned'}>"

    # -- assignment ------------------------------------------------------------------------------------------

    async def assign(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        start: Start = "earliest",
        group: str | None = None,
    ) -> None:
        """Read partitions of a topic, all of them if none is named.

        With `group` they start at the group's committed offsets, and `commit` commits for the group. Other consumers
        are not excluded: use `subscribe` for that.
        """
        self._check_open()
        check_start(self._driver, start)
        if self._member is not None or (self._fetchers and group != self._group):
            raise ValueError("a consumer has one group, and is either subscribed or assigned by hand")
        numbers = (
            range(await self._ask(lambda: self._driver.partition_count(topic))) if partitions is None else partitions
        )
        self._group = group
        places = [(topic, number) for number in numbers if (topic, number) not in self._fetchers]
        await self._add(places, start)
        self._start_committing()

    async def subscribe(
        self,
        *topics: str,
        group: str,
        member: str | None = None,
        instance: str | None = None,
        start: Start = "earliest",
        before_rebalance: Leaving | None = None,
        on_rebalance: Rebalanced | None = None,
    ) -> None:
        """Join a group, which assigns partitions of topics to its members. `start`: where to read without a committed
        offset.

        A topic may be a file name pattern (`orders-*`); new topics that match are read when they are discovered.
        `instance` is a static member name: a member that returns under it in time keeps its partitions without a
        rebalance. `before_rebalance` and `on_rebalance` are called in the client's event loop, by the blocking client
        in its thread. The value they return is awaited; they must not call the blocking client.
        """
        self._check_open()
        check_start(self._driver, start)
        self._driver.require("groups")
        if not topics:
            raise ValueError("a topic or a pattern to subscribe to is missing")
        if len(topics) > 1 or is_pattern(topics[0]):
            self._driver.require("many_topics")
        if instance is not None:
            self._driver.require("static_members")
        if self._member is not None or self._fetchers:
            raise ValueError("this consumer has an assignment already: a consumer subscribes only once")
        self._group = group
        who = MemberName(member or f"braidlog-{uuid.uuid4().hex}", instance)
        subscription = Subscription(group, topics, who, start, before_rebalance, on_rebalance)
        joining = Member(self, self._driver, self._policy, subscription)
        self._member = joining
        try:
            await joining.join()
        except BaseException:
            self._drop(list(self._fetchers))
            self._member = None
            raise
        self._beat()
        self._start_committing()

    def _beat(self) -> None:
        assert self._member is not None
        beating = self._member.run(self._options.heartbeat_seconds, self._options.patterns_seconds)
        self._beating = self._tasks.spawn(beating, f"{self._member!r}")

    @property
    def assignment(self) -> frozenset[Place]:
        """The (topic, partition) pairs that are being read."""
        return frozenset(self._fetchers)

    def position(self, topic: str, partition: int) -> int:
        """Return the offset of the next record to return."""
        return self._fetchers[topic, partition].position

    def reached(self, topic: str, partition: int) -> int:
        """Return the offset before which no record is left to return. It exceeds `position` if the log ends with
        control records."""
        return self._fetchers[topic, partition].reached

    async def seek(self, topic: str, partition: int, start: Start) -> None:
        """Continue reading at another offset."""
        check_start(self._driver, start)
        place = topic, partition
        if place not in self._fetchers:
            raise ValueError(f"{topic}/{partition} is not assigned to this consumer")
        offset = await offset_of(self._driver, self._policy, place, start)
        if place in self._fetchers:  # a rebalance may have removed it during the await
            self._drop([place])
            self._place_at(place, offset)

    def pause(self, *places: Place) -> None:
        """Stop returning records of these partitions, or of all if none is named, until they are lost. Prefetched
        records are kept."""
        self._paused |= self._held(places)

    def resume(self, *places: Place) -> None:
        """Return records of these partitions again, or of all if none is named."""
        self._paused -= self._held(places)
        self._arrived.set()

    @property
    def paused(self) -> frozenset[Place]:
        return frozenset(self._paused)

    def _held(self, places: Collection[Place]) -> frozenset[Place]:
        for topic, partition in places:
            if (topic, partition) not in self._fetchers:
                raise ValueError(f"{topic}/{partition} is not assigned to this consumer")
        return frozenset(places or self._fetchers)

    def lag(self) -> dict[Place, int | None]:
        """The number of records that are not returned yet, by partition, as of its last fetch; None if the server did
        not report it."""
        return {place: fetcher.lag for place, fetcher in self._fetchers.items()}

    @property
    def metrics(self) -> ConsumerMetrics:
        """The consumer's counters."""
        joins = 0 if self._member is None else self._member.joins
        return ConsumerMetrics(self._records, self._bytes, self._fetches, joins)

    # -- records ---------------------------------------------------------------------------------------------

    async def poll(self, max_records: int = 500, timeout: float = 1.0) -> list[ConsumedRecord]:  # noqa: ASYNC109 - nothing is cancelled
        """Return up to `max_records` as soon as there is one; an empty list after `timeout` seconds."""
        self._worked_on()
        await self._catch_up()
        await self._wait(timeout)
        records: list[ConsumedRecord] = []
        while len(records) < max_records and (fetcher := self._next_fetcher()) is not None:
            for _ in range(min(fetcher.ready, max_records - len(records))):
                records.append(fetcher.take())  # noqa: PERF401 - taking changes what is ready
        self._records += len(records)
        if not records:
            self._raise_failure()
        return records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        """Wait for and return the next record. A record counts as processed when the next one is requested."""
        self._worked_on()
        await self._catch_up()
        while True:
            fetcher = self._next_fetcher()
            if fetcher is not None:
                self._records += 1
                return fetcher.take()
            self._raise_failure()
            await self._wait(None)

    def _worked_on(self) -> None:
        self._check_open()
        for fetcher in self._fetchers.values():
            fetcher.processed = fetcher.position
            if fetcher.task is None or fetcher.task.done():
                self._fetch_again(fetcher)
        if self._beating is not None and self._beating.done():
            self._beat()

    async def _wait(self, seconds: float | None) -> None:
        """Wait until there are records to return or an error to raise."""
        while not self._failures and not any(self._is_ready(place) for place in self._turns):
            self._check_open()
            self._arrived.clear()
            began = asyncio.get_running_loop().time()
            if not await wait_at_most(self._arrived, seconds):
                return
            if seconds is not None:
                seconds = max(seconds - (asyncio.get_running_loop().time() - began), 0)

    def _is_ready(self, place: Place) -> bool:
        return self._fetchers[place].ready > 0 and place not in self._paused

    def _next_fetcher(self) -> PartitionFetcher | None:
        """Return a partition that has records; partitions take turns."""
        for at, place in enumerate(self._turns):
            if self._is_ready(place):
                self._turns.append(self._turns.pop(at))
                self._read_as = self._read_as or self.membership
                return self._fetchers[place]
        return None

    def _raise_failure(self) -> None:
        if self._failures:
            failure, self._failures = self._failures[0], []
            raise failure

    # -- commits ---------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        """Commit the offsets of all returned records, or the given offsets (the next to read). A member's commit is
        fenced.

        `RefusedError(REJOIN)`: the group has rebalanced and nothing was committed. Another member may get the same
        records. Records of partitions that this member keeps are not returned again, and belong to the next commit.
        """
        self._check_open()
        await self._catch_up()
        explicit = (
            {fetcher.place: fetcher.position for fetcher in self._fetchers.values()}
            if offsets is None
            else dict(offsets)
        )
        await self._commit(explicit)
        if offsets is None:
            self._read_as = None

    async def _commit(self, offsets: Mapping[Place, int]) -> None:
        group = self._require_commits()
        moved: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in offsets.items():
            fetcher = self._fetchers.get((topic, partition))
            if fetcher is None:
                raise ValueError(f"{topic}/{partition} is not assigned to this consumer")
            if fetcher.committed != offset:
                moved.setdefault(topic, {})[partition] = offset
        membership = self.membership
        for topic, moves in moved.items():
            try:
                await self._ask(lambda t=topic, w=moves: self._driver.commit(group, t, w, membership))  # type: ignore[misc]
            except RefusedError as error:
                if error.reason is Refusal.REJOIN:
                    self.rejoin()
                raise
            for partition, offset in moves.items():
                if (fetcher := self._fetchers.get((topic, partition))) is not None:
                    fetcher.committed = offset

    # -- called by transactions --------------------------------------------------------------------------------

    def check_transactional(self) -> None:
        """Raise `ValueError` if the consumer's offsets cannot be committed by a transaction."""
        self._require_commits()
        if self._options.auto_commit_ms is not None:
            raise ValueError("a transaction commits its consumer's offsets: use a consumer without auto_commit_ms")

    def uncommitted(self) -> GroupOffsets | None:
        """Return uncommitted offsets with their generation; raises after a rebalance, because other members may have
        the records."""
        assert self._group is not None
        member = self._read_as
        if member != self.membership and member is not None:
            words = "the group has rebalanced since these records were read; they are read again by their new owners"
            raise RefusedError(Refusal.REJOIN, self._driver.name, "", words)
        moved = {
            fetcher.place: fetcher.position
            for fetcher in self._fetchers.values()
            if fetcher.position != fetcher.settled
        }
        if not moved:
            return None
        if member is None:
            return GroupOffsets(self._group, moved)
        return GroupOffsets(self._group, moved, member.member, member.generation, member.instance)

    def committed_with(self, read: GroupOffsets) -> None:
        """Record that a transaction committed these offsets."""
        self._read_as = None
        for place, offset in read.offsets.items():
            if (fetcher := self._fetchers.get(place)) is not None:
                fetcher.committed = offset

    def go_back(self) -> None:
        """Discard what was returned since the last commit: the next poll returns it again."""
        self._is_behind = True

    async def _catch_up(self) -> None:
        if not self._is_behind:
            return
        for fetcher in list(self._fetchers.values()):
            place = fetcher.place
            committed = await self.committed(*place)
            if self._fetchers.get(place) is fetcher:  # a rebalance may have removed it during the await
                self._drop([place])
                self._place_at(place, fetcher.began if committed is None else committed)
        self._is_behind, self._read_as = False, None

    def _require_commits(self) -> str:
        if self._group is None:
            raise ValueError("commits belong to a group: name one in assign() or subscribe()")
        if self._driver.capabilities.commits is Commits.MEMBERS and self._member is None:
            raise UnsupportedError(
                f"{self._driver.name} accepts commits of group members only; use subscribe() instead of assign()"
            )
        return self._group

    async def committed(self, topic: str, partition: int) -> int | None:
        """Return the group's committed offset; None if it never committed (most dialects answer 0 then)."""
        if self._group is None:
            raise ValueError("commits belong to a group: name one in assign() or subscribe()")
        group = self._group
        return await self._ask(lambda: self._driver.committed(group, topic, partition))

    def _start_committing(self) -> None:
        if self._options.auto_commit_ms is not None:
            self._require_commits()
            self._tasks.spawn(self._commit_now_and_then(self._options.auto_commit_ms / 1000), "auto commit")

    async def _commit_now_and_then(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._commit_worked_on()

    async def _commit_worked_on(self) -> None:
        """Commit the records returned before the last call; the last ones may still be in processing.

        If nothing was returned, nothing is committed: a committed 0 would mean that the group has begun.
        """
        try:
            await self._commit(
                {
                    fetcher.place: fetcher.processed
                    for fetcher in self._fetchers.values()
                    if fetcher.processed != fetcher.began
                }
            )
        except RefusedError as error:
            if (
                error.reason is not Refusal.REJOIN
            ):  # the member handles a rebalance; the partition's new owner reads these records again
                self.stopped(error)
        except ClientError as error:
            self.stopped(error)

    # -- fetchers ----------------------------------------------------------------------------------------------

    async def _add(self, places: Iterable[Place], start: Start) -> None:
        for place in places:
            self._place_at(place, await self._begin(place, start))

    def _place_at(self, place: Place, offset: int) -> None:
        fetcher = PartitionFetcher(self, self._driver, self._policy, self._options, place, offset, next(self._slots))
        self._fetchers[place] = fetcher
        self._turns.append(place)
        self._fetch_again(fetcher)

    def _fetch_again(self, fetcher: PartitionFetcher) -> None:
        fetcher.task = self._tasks.spawn(fetcher.run(), f"fetch {fetcher.topic}/{fetcher.partition}")

    async def _begin(self, place: Place, start: Start) -> int:
        """Return the group's committed offset, else the offset of `start`."""
        if self._group is not None:
            group = self._group
            committed = await self._ask(lambda: self._driver.committed(group, *place))
            if committed is not None:
                return committed
        return await offset_of(self._driver, self._policy, place, start)

    def _drop(self, places: Iterable[Place]) -> None:
        for place in places:
            fetcher = self._fetchers.pop(place)
            self._turns.remove(place)
            fetcher.clear()
            if fetcher.task is not None:
                fetcher.task.cancel()

    # -- called by fetchers and by the member --------------------------------------------------------------------

    @property
    def fetcher_count(self) -> int:
        return max(len(self._fetchers), 1)

    @property
    def membership(self) -> Membership | None:
        return self._member.membership if self._member is not None else None

    def arrived(self, size: int) -> None:
        """Called when a fetcher has records of this many bytes to return."""
        self._fetches += 1
        self._bytes += size
        self._arrived.set()

    def stopped(self, error: ClientError) -> None:
        """Called when a fetcher has stopped; it restarts when the consumer is polled again."""
        self._failures.append(error)
        self._arrived.set()

    def rejoin(self) -> None:
        """Called when the server reports a rebalance."""
        if self._member is not None:
            self._member.rejoin()

    def keep_only(self, places: Collection[Place]) -> frozenset[Place]:
        """Drop the partitions that are not among these; return the dropped ones."""
        lost = frozenset(self._fetchers) - frozenset(places)
        self._drop(lost)
        self._paused -= lost
        return lost

    async def gain(self, places: Collection[Place], start: Start) -> frozenset[Place]:
        gained = frozenset(places) - frozenset(self._fetchers)
        await self._add(sorted(gained), start)
        for fetcher in self._fetchers.values():
            if fetcher.task is None or fetcher.task.done():
                self._fetch_again(fetcher)  # it stopped when the server reported the rebalance
        return gained

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(self._policy, call)

    # -- closing ---------------------------------------------------------------------------------------------

    async def close(self, *, commit: bool = True) -> None:
        """Stop fetching and leave the group. With `auto_commit_ms`, and if `commit`, first commit all returned
        records."""
        if self._closed:
            return
        auto = self._options.auto_commit_ms is not None
        try:
            if auto:
                if commit:
                    self._worked_on()
                await self._commit_worked_on()
                self._raise_failure()
        finally:
            self.abandon()
        await self._tasks.stop()
        if self._member is not None:
            await self._member.leave()

    def abandon(self) -> None:
        """Stop immediately, without leaving the group."""
        self._closed = True
        self._arrived.set()
        self._tasks.cancel()
        self._drop(list(self._fetchers))

    async def __aexit__(self, *error: object) -> None:
        # After an error it is unknown whether the last records were processed: they are read again.
        await self.close(commit=error[0] is None)
