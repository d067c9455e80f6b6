"""The groups of this node, by name: durable, expiring.

Knows: when a group must be kept and when its members are overdue. Refuses to know: how a member asks.
Invariants: a generation is durable before any member hears of it; a change is journalled in the step that makes it, and undone
if it cannot be; a commit of a member is fenced by its generation and assignment at the moment it is journalled, in the same
step.
"""

from collections.abc import Iterable, Sequence

import msgspec

from braidlog.broker.groups.assignors import Assignor
from braidlog.broker.groups.group import Group, Membership
from braidlog.broker.offsets import Commit, Committed, Offsets, check_group_name
from braidlog.broker.ports import World
from braidlog.broker.topics import Topics
from braidlog.cluster.journal import Table
from braidlog.model.errors import BrokerError, Reason, StorageFault

SESSION_TIMEOUT_MS = 10_000
SESSION_TIMEOUT_MS_MIN = 100
SESSION_TIMEOUT_MS_MAX = 1_800_000


class Lag(msgspec.Struct, frozen=True):
    """How far a group is behind in one partition. `committed` is None before the first commit."""

    topic: str
    partition: int
    committed: int | None
    end_offset: int
    lag: int
    member: str | None


class Groups:
    """The use case."""

    def __init__(self, table: Table, offsets: Offsets, topics: Topics, world: World) -> None:
        self._table = table
        self._offsets = offsets
        self._topics = topics
        self._world = world
        self._groups: dict[str, Group] = {}
        self._kept: dict[str, int] = {}
        for (name,), image in table.items():
            group = self._groups[str(name)] = Group(str(name), self._partitions_of, image)
            group.revive(world.now_ms())

    def _partitions_of(self, topic: str) -> int:
        return self._topics.meta(topic).partitions if self._topics.exists(topic) else 0

    # -- membership ------------------------------------------------------------------------------------------

    async def join(
        self,
        group: str,
        member: str,
        topics: Iterable[str],
        *,
        assignor: Assignor | None = None,
        default_assignor: Assignor = Assignor.RANGE,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> Membership:
        """Come into a group; the answer holds the member's share of the new generation.

        Without an `assignor` the group's own stays; a new group has the default.
        """
        check_group_name(group)
        if not SESSION_TIMEOUT_MS_MIN <= session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            raise BrokerError(
                Reason.INVALID_GROUP,
                f"a session timeout is {SESSION_TIMEOUT_MS_MIN} to {SESSION_TIMEOUT_MS_MAX} ms, not {session_timeout_ms}",
            )
        wanted = list(topics)
        for topic in wanted:
            self._topics.meta(topic)
        found = self._groups.get(group)
        if found is None:
            found, assignor = Group(group, self._partitions_of), assignor or default_assignor
        changed = found.join(member, wanted, assignor, session_timeout_ms, self._world.now_ms())
        if changed:
            self._put(found)
        # What is told is this generation, once it is durable; a later one may have begun by then and not be durable yet.
        membership = found.membership(member)
        await self._settle(found)
        return membership

    async def register(self, group: str) -> None:
        """Make a group known before its first member comes."""
        check_group_name(group)
        if group not in self._groups:
            self._put(Group(group, self._partitions_of))
        await self._settle(self._groups[group])

    async def leave(self, group: str, member: str, generation: int | None = None) -> None:
        found = self.find(group)
        found.leave(member, generation)
        self._put(found)
        await self._settle(found)

    def heartbeat(self, group: str, member: str, generation: int) -> Membership:
        found = self.find(group)
        if not self._is_settled(found):
            raise BrokerError(
                Reason.REBALANCE_IN_PROGRESS, f"group {group!r} is beginning generation {found.generation}; try again"
            )
        return found.heartbeat(member, generation, self._world.now_ms())

    def sync(self, group: str, member: str, generation: int) -> Membership:
        """A member's share of the generation it names, if that is the present one."""
        return self.heartbeat(group, member, generation)

    def _put(self, group: Group) -> None:
        """Journal a change that was just made; if that fails it was not made."""
        try:
            self._kept[group.name] = self._table.put(group.name, value=group.image())
        except (BrokerError, StorageFault):
            kept = self._table.get(group.name)
            if kept is not None:
                group.restore(kept)
            raise
        self._groups[group.name] = group

    def _is_settled(self, group: Group) -> bool:
        return self._table.journal.partition.durable_offset >= self._kept.get(group.name, 0)

    async def _settle(self, group: Group) -> None:
        """Wait until the group as it is now is durable."""
        await self._world.durable(self._table.journal.partition, self._kept.get(group.name, 0))

    async def expire(self) -> dict[str, list[str]]:
        """Take out overdue members; called every now and then. Returns who went, by group."""
        now_ms = self._world.now_ms()
        gone = {}
        for group in list(self._groups.values()):
            members = group.expire(now_ms)
            if members:
                self._put(group)
                gone[group.name] = members
        await self._settle_all(gone)
        return gone

    async def topic_changed(self, topic: str) -> None:
        """A topic has more partitions, or is gone: the groups that read it begin a new generation."""
        readers = [g for g in self._groups.values() if any(topic in member.topics for member in g.members)]
        for group in readers:
            group.rebalance()
            self._put(group)
        await self._settle_all([group.name for group in readers])

    async def _settle_all(self, names: Iterable[str]) -> None:
        """Every change was journalled before this first wait: after it a group may be another, or gone."""
        next_offset = max((self._kept[name] for name in names), default=0)
        await self._world.durable(self._table.journal.partition, next_offset)

    # -- commits ---------------------------------------------------------------------------------------------

    async def commit(
        self, group: str, member: str, generation: int, commits: Sequence[Commit], *, forward_only: bool = False
    ) -> None:
        """Commit as a member: only what it owns, only in the present generation."""
        found = self.find(group)
        for commit in commits:
            found.check_owner(member, generation, commit.topic, commit.partition)
        found.heartbeat(member, generation, self._world.now_ms())
        await self._offsets.commit(group, commits, forward_only=forward_only)

    # -- looking ---------------------------------------------------------------------------------------------

    def find(self, group: str) -> Group:
        found = self._groups.get(group)
        if found is None:
            raise BrokerError(Reason.GROUP_NOT_FOUND, f"group {group[:60]!r} does not exist")
        return found

    def names(self) -> list[str]:
        """Groups with members, past or present, and groups that only ever committed."""
        return sorted(set(self._groups) | self._offsets.groups())

    def known(self) -> set[str]:
        """Groups that were registered or have had members."""
        return set(self._groups)

    def lag(self, group: str) -> list[Lag]:
        """Every partition the group has committed to or reads, and how far it is behind."""
        committed = self._offsets.of_group(group)
        found = self._groups.get(group)
        if found is None and not committed:
            raise BrokerError(Reason.GROUP_NOT_FOUND, f"group {group[:60]!r} does not exist")
        owners: dict[tuple[str, int], str] = {}
        for member, topics in (found.assignment if found else {}).items():
            owners.update({(topic, p): member for topic, shares in topics.items() for p in shares})
        places = sorted(place for place in set(committed) | set(owners) if self._is_there(place))
        return [self._lag(place, committed.get(place), owners.get(place)) for place in places]

    def _is_there(self, place: tuple[str, int]) -> bool:
        return place[1] < self._partitions_of(place[0])

    def _lag(self, place: tuple[str, int], committed: Committed | None, member: str | None) -> Lag:
        hosted = self._topics.partition(*place)
        offset = None if committed is None else committed.offset
        behind = hosted.high_watermark - max(offset or 0, hosted.start_offset)
        return Lag(*place, offset, hosted.high_watermark, max(behind, 0), member)

    async def delete(self, group: str) -> None:
        """Forget a group without members, and its commits."""
        found = self._groups.get(group)
        if found is not None and found.members:
            raise BrokerError(Reason.REBALANCE_IN_PROGRESS, f"group {group!r} has members; let them leave first")
        if found is None and not self._offsets.has_group(group):
            raise BrokerError(Reason.GROUP_NOT_FOUND, f"group {group[:60]!r} does not exist")
        # Both before the wait: a member that joins meanwhile makes a new group, which nobody deletes behind its back.
        next_offset = self._offsets.drop_group(group)
        if self._groups.pop(group, None) is not None:
            self._kept.pop(group, None)
            next_offset = self._table.drop(group)
        await self._world.durable(self._table.journal.partition, next_offset)
