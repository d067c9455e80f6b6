"""Offset commits within a transaction: kept with their group until the transaction ends.

Invariants: pending commits are durable before their producer gets a response. The end of a transaction turns them into
commits, or drops them, in one journal entry, so a repeated end has no further effect. Nothing is pending for a
transaction whose end arrived before.
"""

from collections.abc import Callable, Sequence

import msgspec

from braidlog.coordinator.journal import Table
from braidlog.coordinator.offsets import Commit, Offsets, Place
from braidlog.coordinator.state_limits import NODE, StateKind, StateUsage
from braidlog.coordinator.transactions.markers import End
from braidlog.coordinator.transactions.transaction import ProducerIdentity
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.produce.transaction_verification import Ask, Question, Verified

ENDED_MAX = 10_000
"""Number of producers whose last end is remembered, to reject late responses."""


class PendingCommit(msgspec.Struct, frozen=True):
    """Commits of one transaction for one group."""

    epoch: int
    number: int
    commits: list[Commit]
    """The last commit of each partition."""


class PendingCommits:
    """Operations of pending commits."""

    def __init__(self, table: Table, offsets: Offsets, ask: Ask, holdings: StateUsage) -> None:
        self._table = table
        self._offsets = offsets
        self._ask = ask
        self._holdings = holdings
        self._by_group: dict[str, dict[int, PendingCommit]] = {}
        for (group, producer_id), pending in table.items():
            self._by_group.setdefault(str(group), {})[int(producer_id)] = pending
        self._ended: dict[int, Verified] = {}
        """The last end of each producer, whether or not anything was pending."""

    def places(self, group: str) -> set[Place]:
        """Partitions whose committed offset may change when a transaction ends."""
        pending = self._by_group.get(group, {}).values()
        return {(commit.topic, commit.partition) for each in pending for commit in each.commits}

    async def stage(
        self,
        group: str,
        producing: ProducerIdentity,
        commits: Sequence[Commit],
        *,
        guard: Callable[[], None],
        by: str = NODE,
        begins: bool = False,
    ) -> int:
        """Stage commits until the transaction ends; returns their number for this group.

        `guard` runs in the step that stores them, and raises if the member left the group. `begins`: start a
        transaction if none is open.
        """
        self._offsets.check_staged(group, commits, by)
        verified = await self._ask(Question(*producing, group, adds=True, begins=begins))
        guard()
        known = self._check(group, producing, verified)
        staged = {(each.topic, each.partition): each for each in (*known, *self._offsets.with_topic_ids(commits))}
        pending = PendingCommit(producing.epoch, verified.number, list(staged.values()))
        with self._holdings.admit(StateKind.GROUPS, group, by):
            mark = self._table.put(group, producing.producer_id, value=pending)
            self._by_group.setdefault(group, {})[producing.producer_id] = pending
        await self._table.journal.wait_committed(mark)
        return len(staged)

    def _check(self, group: str, producing: ProducerIdentity, verified: Verified) -> Sequence[Commit]:
        """The commits already pending. Raises if the verification is older than an end that arrived since."""
        ended = self._ended.get(producing.producer_id)
        is_old = ended is not None and (
            verified.number <= ended.number or verified.coordinator_epoch < ended.coordinator_epoch
        )
        known = self._by_group.get(group, {}).get(producing.producer_id)
        if is_old or (known is not None and known.number > verified.number):
            raise BrokerError(
                Reason.CONCURRENT_TRANSACTIONS,
                f"the transaction of {producing.name[:60]!r} ended during an offset commit of group {group!r}; try "
                "again",
            )
        return known.commits if known is not None and known.number == verified.number else ()

    async def complete(self, ends: Sequence[End]) -> None:
        """End transactions: their pending commits become commits, or are dropped.

        An entry is written even if nothing is pending: a replaced coordinator cannot settle it, and its successor may
        have pending commits.
        """
        commits: list[tuple[str, Commit]] = []
        left: dict[tuple[str, int], PendingCommit | None] = {}
        for end in ends:
            self._note(end)
            for group in end.groups:
                known = self._by_group.get(group, {}).get(end.producer_id)
                is_next = known is not None and known.number > end.number
                left[group, end.producer_id] = known if is_next else None
                if known is not None and known.number == end.number and end.commit:
                    commits += [(group, commit) for commit in known.commits]
        mark = self._offsets.put_staged(commits, [(self._table, key, pending) for key, pending in left.items()])
        for (group, producer_id), pending in left.items():
            if pending is None:
                self._forget(group, producer_id)
        await self._table.journal.wait_committed(mark)

    def _note(self, end: End) -> None:
        known = self._ended.pop(end.producer_id, Verified(end.coordinator_epoch, end.number))
        epoch, number = max(known.coordinator_epoch, end.coordinator_epoch), max(known.number, end.number)
        self._ended[end.producer_id] = Verified(epoch, number)
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def _forget(self, group: str, producer_id: int) -> None:
        pending = self._by_group.get(group, {})
        pending.pop(producer_id, None)
        if not pending:
            self._by_group.pop(group, None)
