"""The consumer: partitions by hand, or those a group assigns.

Knows: positions, commits, membership. Refuses to know: dialects; how a partition is fetched ahead (`partition_fetcher.py`).
Invariants: what is committed was handed out; a commit of a member carries the generation under which it holds the partition, so
one that lost it cannot commit; records of a partition that was lost are not handed out any more. A partition keeps its place
through a rebalance only if nobody else can have had it meanwhile.
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
    """Made by `client.consumer()`. Then `assign` or `subscribe`, and `poll` or `async for`."""

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
        """Whether what was handed out since the last commit does not count: it is handed out again."""
        self._read_as: Membership | None = None
        """The member that the oldest record was handed out to that is not committed."""

    def __repr__(self) -> str:
        places = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(self._fetchers))
        group = f" in group {self._group!r}" if self._group else ""
        return f"<Consumer {self._driver!r}{group}: {places or 'nothing assigned'}>"

    # -- what to read ----------------------------------------------------------------------------------------

    async def assign(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        start: Start = "earliest",
        group: str | None = None,
    ) -> None:
        """Read partitions, all of them if none is named.

        With `group` they begin where that group has committed, and `commit` commits for it. Nobody is told to leave them alone:
        that is what `subscribe` is for.
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
        """Become a member of a group, which shares out the partitions of topics. `start`: where nothing is committed yet.

        A topic may be a pattern, as file names have it (`orders-*`); new topics that match are read when they are noticed.
        `instance` is a name that stays: a member that comes back under it in time has its share again, and nobody else notices.
        `before_rebalance` and `on_rebalance` are called in the client's loop, with the blocking client in its thread: what they
        return is awaited, and must not be a call of the blocking client.
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
            raise ValueError("this consumer has partitions already: a consumer subscribes once")
        self._group = group
        who = MemberName(member or f"braidlog-{uuid.uuid4().hex}", instance)
        wanted = Subscription(group, topics, who, start, before_rebalance, on_rebalance)
        found = Member(self, self._driver, self._policy, wanted)
        self._member = found
        try:
            await found.join()
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
        """(topic, partition) pairs that are read now."""
        return frozenset(self._fetchers)

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record that is handed out."""
        return self._fetchers[topic, partition].position

    def reached(self, topic: str, partition: int) -> int:
        """No record before this is still to be handed out. Beyond `position` where a log ends with what is no record."""
        return self._fetchers[topic, partition].reached

    async def seek(self, topic: str, partition: int, start: Start) -> None:
        """Go on somewhere else."""
        check_start(self._driver, start)
        place = topic, partition
        if place not in self._fetchers:
            raise ValueError(f"{topic}/{partition} is not assigned to this consumer")
        offset = await offset_of(self._driver, self._policy, place, start)
        if place in self._fetchers:  # a rebalance may have taken it meanwhile
            self._drop([place])
            self._place_at(place, offset)

    def pause(self, *places: Place) -> None:
        """Hand out nothing of these, of none at all if none is named; what was fetched ahead is kept. Until they are lost."""
        self._paused |= self._held(places)

    def resume(self, *places: Place) -> None:
        """Hand out records of these again, of all if none is named."""
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
        """How many records each partition has beyond those handed out, as of its last fetch; None where that was not told."""
        return {place: fetcher.lag for place, fetcher in self._fetchers.items()}

    @property
    def metrics(self) -> ConsumerMetrics:
        """What it has done so far."""
        joins = 0 if self._member is None else self._member.joins
        return ConsumerMetrics(self._records, self._bytes, self._fetches, joins)

    # -- records ---------------------------------------------------------------------------------------------

    async def poll(self, max_records: int = 500, timeout: float = 1.0) -> list[ConsumedRecord]:  # noqa: ASYNC109 - nothing is cut off
        """Up to `max_records`, as soon as there is one; none after `timeout` seconds."""
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
        """The next record, however long it takes. A record is worked on when the next one is asked for."""
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
        """Until there is something to hand out or to raise."""
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
        """A partition that has records; they take turns."""
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
        """Commit all that was handed out, or the offsets given (the next to read). Fenced where one is a member.

        `RefusedError(REJOIN)`: the group has changed and nothing was committed. What was handed out may be handed to somebody
        else too; of partitions that this member keeps it is not handed out again, and goes with the next commit.
        """
        self._check_open()
        await self._catch_up()
        wanted = (
            {fetcher.place: fetcher.position for fetcher in self._fetchers.values()}
            if offsets is None
            else dict(offsets)
        )
        await self._commit(wanted)
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
        for topic, wanted in moved.items():
            try:
                await self._ask(lambda t=topic, w=wanted: self._driver.commit(group, t, w, membership))  # type: ignore[misc]
            except RefusedError as error:
                if error.reason is Refusal.REJOIN:
                    self.rejoin()
                raise
            for partition, offset in wanted.items():
                if (fetcher := self._fetchers.get((topic, partition))) is not None:
                    fetcher.committed = offset

    # -- told by transactions ----------------------------------------------------------------------------------

    def check_transactional(self) -> None:
        """`ValueError` if its offsets cannot be committed by a transaction."""
        self._require_commits()
        if self._options.auto_commit_ms is not None:
            raise ValueError("a transaction commits what its consumer has read: a consumer without auto_commit_ms")

    def uncommitted(self) -> GroupOffsets | None:
        """Under the generation in which all of it was handed out: if the group has changed since, others may have it too."""
        assert self._group is not None
        member = self._read_as
        if member != self.membership and member is not None:
            words = "the group has changed since these records were read; they are read again by whoever has them now"
            raise RefusedError(Refusal.REJOIN, self._driver.name, "", words)
        moved = {each.place: each.position for each in self._fetchers.values() if each.position != each.settled}
        if not moved:
            return None
        if member is None:
            return GroupOffsets(self._group, moved)
        return GroupOffsets(self._group, moved, member.member, member.generation, member.instance)

    def committed_with(self, read: GroupOffsets) -> None:
        """A transaction committed these."""
        self._read_as = None
        for place, offset in read.offsets.items():
            if (fetcher := self._fetchers.get(place)) is not None:
                fetcher.committed = offset

    def go_back(self) -> None:
        """What was handed out since the last commit does not count: it is handed out again, from the next poll on."""
        self._is_behind = True

    async def _catch_up(self) -> None:
        if not self._is_behind:
            return
        for fetcher in list(self._fetchers.values()):
            place = fetcher.place
            committed = await self.committed(*place)
            if self._fetchers.get(place) is fetcher:  # a rebalance may have taken it meanwhile
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
        """Where the group goes on; None if it never committed (0 looks the same in most dialects)."""
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
        """What was handed out before the last call: the rest may still be worked on.

        Where nothing was handed out nothing is committed: 0 would read as "this group has begun".
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
            ):  # of a rebalance the member knows; who has the partition now reads it again
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
        """Where the group has committed, else as asked."""
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

    # -- told by fetchers and by the member ---------------------------------------------------------------------

    @property
    def fetcher_count(self) -> int:
        return max(len(self._fetchers), 1)

    @property
    def membership(self) -> Membership | None:
        return self._member.membership if self._member is not None else None

    def arrived(self, size: int) -> None:
        """A fetcher has records to hand out, of so many bytes."""
        self._fetches += 1
        self._bytes += size
        self._arrived.set()

    def stopped(self, error: ClientError) -> None:
        """A fetcher has ended; it begins again when the consumer is asked for records again."""
        self._failures.append(error)
        self._arrived.set()

    def rejoin(self) -> None:
        """The server says that the group has changed."""
        if self._member is not None:
            self._member.rejoin()

    def keep_only(self, places: Collection[Place]) -> frozenset[Place]:
        """Lose what is not among these; returns what was lost."""
        lost = frozenset(self._fetchers) - frozenset(places)
        self._drop(lost)
        self._paused -= lost
        return lost

    async def gain(self, places: Collection[Place], start: Start) -> frozenset[Place]:
        gained = frozenset(places) - frozenset(self._fetchers)
        await self._add(sorted(gained), start)
        for fetcher in self._fetchers.values():
            if fetcher.task is None or fetcher.task.done():
                self._fetch_again(fetcher)  # it stopped when it was told that the group has changed
        return gained

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(self._policy, call)

    # -- the end ---------------------------------------------------------------------------------------------

    async def close(self, *, commit: bool = True) -> None:
        """Stop fetching and leave the group. With `auto_commit_ms` all that was handed out is committed before, if `commit`."""
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
        """Stop at once, without a word to the group."""
        self._closed = True
        self._arrived.set()
        self._tasks.cancel()
        self._drop(list(self._fetchers))

    async def __aexit__(self, *error: object) -> None:
        # After an error nobody knows whether the last records were worked on: they are read again.
        await self.close(commit=error[0] is None)
