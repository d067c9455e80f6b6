"""Commits that a transaction carries: kept where their group is, and counted or dropped by the end of the transaction.

Knows: what is pending of each group, by producer. Refuses to know: how a transaction ends, who is in a group (the caller's guard
does). Invariants: that a group's commits are pending is durable before their producer hears of it; an end turns what is pending
into commits, or drops it, in one entry of the journal, so that it counts once however often it is repeated; nothing is pending
of a transaction whose end was here before.
"""

from collections.abc import Callable, Sequence

import msgspec

from braidlog.coordinator.holdings import NODE, Holdings, StateKind
from braidlog.coordinator.journal import Table
from braidlog.coordinator.markers import End
from braidlog.coordinator.offsets import Commit, Offsets, Place
from braidlog.coordinator.transaction import Producing
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.verification import Ask, Question, Verified

ENDED_MAX = 10_000
"""So many producers' last ends are remembered, against an answer that came late."""


class Pending(msgspec.Struct, frozen=True):
    """What one transaction commits for one group."""

    epoch: int
    number: int
    commits: list[Commit]
    """The last one of each partition."""


class PendingCommits:
    """The use case."""

    def __init__(self, table: Table, offsets: Offsets, ask: Ask, holdings: Holdings) -> None:
        self._table = table
        self._offsets = offsets
        self._ask = ask
        self._holdings = holdings
        self._by_group: dict[str, dict[int, Pending]] = {}
        for (group, producer_id), pending in table.items():
            self._by_group.setdefault(str(group), {})[int(producer_id)] = pending
        self._ended: dict[int, Verified] = {}
        """The last end of each producer that came here, whatever there was to be ended."""

    def places(self, group: str) -> set[Place]:
        """Where a group's commits may change any moment."""
        pending = self._by_group.get(group, {}).values()
        return {(commit.topic, commit.partition) for each in pending for commit in each.commits}

    async def stage(
        self,
        group: str,
        producing: Producing,
        commits: Sequence[Commit],
        *,
        guard: Callable[[], None],
        by: str = NODE,
        begins: bool = False,
    ) -> int:
        """Keep commits until the transaction ends; return how many it has for this group.

        The `guard` is asked in the step that keeps them, and raises if who commits is not in the group any more. `begins`: the
        transaction, if none is open.
        """
        self._offsets.check_staged(group, commits, by)
        verified = await self._ask(Question(*producing, group, adds=True, begins=begins))
        guard()
        known = self._check(group, producing, verified)
        staged = {(each.topic, each.partition): each for each in (*known, *self._offsets.to_stage(commits))}
        pending = Pending(producing.epoch, verified.number, list(staged.values()))
        with self._holdings.admitted(StateKind.GROUPS, group, by):
            mark = self._table.put(group, producing.producer_id, value=pending)
            self._by_group.setdefault(group, {})[producing.producer_id] = pending
        await self._table.journal.settled(mark)
        return len(staged)

    def _check(self, group: str, producing: Producing, verified: Verified) -> Sequence[Commit]:
        """What the transaction has pending already; refuse a word that is older than what came here since."""
        ended = self._ended.get(producing.producer_id)
        is_old = ended is not None and (
            verified.number <= ended.number or verified.coordinator_epoch < ended.coordinator_epoch
        )
        known = self._by_group.get(group, {}).get(producing.producer_id)
        if is_old or (known is not None and known.number > verified.number):
            raise BrokerError(
                Reason.CONCURRENT_TRANSACTIONS,
                f"the transaction of {producing.name[:60]!r} ended while it committed offsets of group {group!r}; try again",
            )
        return known.commits if known is not None and known.number == verified.number else ()

    async def end(self, ends: Sequence[End]) -> None:
        """Transactions have ended: what they have pending here counts from now on, or never will.

        An entry is written also if nothing is pending: whoever has a successor, with whom it may be, cannot settle it."""
        commits: list[tuple[str, Commit]] = []
        left: dict[tuple[str, int], Pending | None] = {}
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
        await self._table.journal.settled(mark)

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
