"""The consumer: partitions by hand, or those a group assigns.

Knows: positions, commits, membership. Refuses to know: dialects; how a partition is fetched ahead (`partition_fetcher.py`).
Invariants: what is committed was handed out; a commit of a member carries the generation under which it holds the partition, so
one that lost it cannot commit; records of a partition that was lost are not handed out any more. A partition keeps its place
through a rebalance only if nobody else can have had it meanwhile.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Self, TypeVar

from braidlog.client.drivers.contract import Commits, ConsumedRecord, Driver, Membership
from braidlog.client.drivers.transactions import GroupOffsets
from braidlog.client.engine.closing import AsyncClosing
from braidlog.client.engine.member import Member, Place, Rebalanced, Start
from braidlog.client.engine.options import ConsumerOptions
from braidlog.client.engine.partition_fetcher import PartitionFetcher
from braidlog.client.engine.retry import Policy, retry, wait_at_most
from braidlog.client.errors import ClientError, Refusal, RefusedError, UnsupportedError
from braidlog.tasks import Tasks

T = TypeVar("T")

_WORDS = ("earliest", "latest")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


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
        self._check_start(start)
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
        topic: str,
        *,
        group: str,
        member: str | None = None,
        start: Start = "earliest",
        on_rebalance: Rebalanced | None = None,
    ) -> None:
        """Become a member of a group, which shares out the topic's partitions. `start`: where nothing is committed yet.

        `on_rebalance` is called in the client's loop, with the blocking client in its thread: it must not call the client.
        """
        self._check_open()
        self._check_start(start)
        self._driver.require("groups")
        if self._member is not None or self._fetchers:
            raise ValueError("this consumer has partitions already: a consumer subscribes once")
        self._group = group
        name = member or f"braidlog-{uuid.uuid4().hex}"
        found = Member(self, self._driver, self._policy, (group, topic, name), start=start, on_rebalance=on_rebalance)
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
        self._beating = self._tasks.spawn(self._member.run(self._options.heartbeat_seconds), f"{self._member!r}")

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
        self._check_start(start)
        place = topic, partition
        if place not in self._fetchers:
            raise ValueError(f"{topic}/{partition} is not assigned to this consumer")
        offset = await self._offset(place, start)
        if place in self._fetchers:  # a rebalance may have taken it meanwhile
            self._drop([place])
            self._place_at(place, offset)

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
        while not self._failures and not any(fetcher.ready for fetcher in self._fetchers.values()):
            self._check_open()
            self._arrived.clear()
            began = asyncio.get_running_loop().time()
            if not await wait_at_most(self._arrived, seconds):
                return
            if seconds is not None:
                seconds = max(seconds - (asyncio.get_running_loop().time() - began), 0)

    def _next_fetcher(self) -> PartitionFetcher | None:
        """A partition that has records; they take turns."""
        for at, place in enumerate(self._turns):
            if self._fetchers[place].ready:
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
        return GroupOffsets(self._group, moved, member.member, member.generation)

    def committed_with(self, read: GroupOffsets) -> None:
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
        return await self._offset(place, start)

    async def _offset(self, place: Place, start: Start) -> int:
        if isinstance(start, int):
            return start
        if isinstance(start, datetime):
            return await self._offset_at(place, start)
        span = await self._ask(lambda: self._driver.span(*place))
        return span.earliest if start == "earliest" else span.latest

    async def _offset_at(self, place: Place, time: datetime) -> int:
        """The first record at or after a time; the end where all are older."""
        timestamp_ms = -((_EPOCH - time) // _MILLISECOND)  # rounded up: never a record that is older
        found = await self._ask(lambda: self._driver.offset_at(*place, timestamp_ms))
        return (await self._ask(lambda: self._driver.span(*place))).latest if found is None else found

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

    def arrived(self) -> None:
        self._arrived.set()

    def stopped(self, error: ClientError) -> None:
        self._failures.append(error)
        self._arrived.set()

    def rejoin(self) -> None:
        if self._member is not None:
            self._member.rejoin()

    def keep_only(self, places: Collection[Place]) -> frozenset[Place]:
        """Lose what is not among these; returns what was lost."""
        lost = frozenset(self._fetchers) - frozenset(places)
        self._drop(lost)
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

    def _check_start(self, start: Start) -> None:
        if isinstance(start, datetime):
            self._driver.require("finds_times")
            if start.tzinfo is None:
                raise ValueError("a time to start at has a zone: datetime.now(UTC), datetime(..., tzinfo=UTC)")
        if isinstance(start, str) and start not in _WORDS:
            raise ValueError(f"start is {' or '.join(_WORDS)}, an offset or a datetime, not {start!r}")
        if isinstance(start, int) and start < 0:
            raise ValueError(f"an offset is not negative: {start}")

    async def __aexit__(self, *error: object) -> None:
        # After an error nobody knows whether the last records were worked on: they are read again.
        await self.close(commit=error[0] is None)
