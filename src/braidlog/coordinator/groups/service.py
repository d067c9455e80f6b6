"""Operations of broker-assigned groups, and operations common to all kinds.

Invariants: a generation is durable before any member receives it. A change is journalled in the step that makes it,
and undone if that fails. A member's commit is fenced by generation and assignment in the step that journals it.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.coordinator.consumer_groups.group import ConsumerGroup
from braidlog.coordinator.consumer_groups.service import ConsumerGroups, ConsumerGroupSettings, MaySee, SettingsOf
from braidlog.coordinator.groups.assignors import Assignor
from braidlog.coordinator.groups.classic_group import ClassicGroup
from braidlog.coordinator.groups.classic_members import ClassicMembers
from braidlog.coordinator.groups.classic_service import ClassicGroups
from braidlog.coordinator.groups.group import (
    SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN,
    Group,
    GroupImage,
    Membership,
)
from braidlog.coordinator.groups.member_metadata import MemberMetadata
from braidlog.coordinator.groups.messages import State
from braidlog.coordinator.groups.migration import GroupConverter
from braidlog.coordinator.groups.registry import AnyGroup, GroupRegistry
from braidlog.coordinator.offsets import Commit, Committed, Offsets, Place, check_group_name
from braidlog.coordinator.state_limits import NODE, StateKind
from braidlog.model.actor import audit
from braidlog.model.errors import BrokerError, NotLeaderError, Reason, StorageFault
from braidlog.model.reporting.node_report import UNKNOWN_END, LagReport, lag_of
from braidlog.model.runtime.cooperative import in_slices
from braidlog.model.runtime.runtime import Runtime
from braidlog.model.settings import UNLIMITED
from braidlog.partition.partition_registry import PartitionRegistry

SESSION_TIMEOUT_MS = 10_000
NEVER_COMMITTED_MS = 10 * 60 * 1000
"""Retention of a group without members and commits."""


class MemberView(msgspec.Struct, frozen=True):
    """One member for administrators. A leader's assignment is bytes, a broker's assignment is `shares`."""

    member: str
    instance: str | None = None
    client: str = ""
    host: str = ""
    metadata: bytes = b""
    assignment: bytes = b""
    topics: list[str] = []
    shares: dict[str, list[int]] = {}
    epoch: int = 0
    rack: str | None = None
    pattern: str = ""
    target: dict[str, list[int]] = {}
    """The partitions that a consumer group member reads once other members have revoked them."""
    is_translated: bool = False
    """Whether a consumer group member uses the classic protocol."""


class GroupKind(StrEnum):
    CLASSIC = "classic"
    """An elected leader assigns partitions."""
    ASSIGNED = "assigned"
    """The broker assigns partitions in each generation."""
    CONSUMER = "consumer"
    """The coordinator assigns partitions and moves them one by one."""


class GroupView(msgspec.Struct, frozen=True):
    """A group of any kind. A group with commits only is empty, and counts as classic."""

    name: str
    state: State
    generation: int
    protocol_type: str
    protocol: str
    members: list[MemberView]
    kind: GroupKind = GroupKind.CLASSIC


class Groups:
    """Operations of groups."""

    def __init__(
        self,
        registry: GroupRegistry,
        offsets: Offsets,
        hosting: PartitionRegistry,
        runtime: Runtime,
        metadata: MemberMetadata | None = None,
        consumer: SettingsOf = lambda _: ConsumerGroupSettings(),
        may_see: MaySee = lambda _, __: True,
    ) -> None:
        self._metadata = metadata
        self._registry = registry
        self._offsets = offsets
        self._hosting = hosting
        self._runtime = runtime
        self.classic = ClassicGroups(registry, offsets, runtime)
        self.consumer = ConsumerGroups(registry, offsets, hosting, runtime, consumer, may_see)
        self._classic_members: ClassicMembers | None = None
        if metadata is not None:
            migration = self.consumer.migration = GroupConverter(registry, self.classic, metadata, hosting)
            self._classic_members = ClassicMembers(registry, self.consumer, migration)

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
        by: str = NODE,
    ) -> Membership:
        """Join a group as the principal `by`; returns the member's assignment in the new generation.

        Without an `assignor` the group keeps its own; a new group uses the default.
        """
        check_group_name(group)
        if not SESSION_TIMEOUT_MS_MIN <= session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            raise BrokerError(
                Reason.INVALID_GROUP,
                f"a session timeout is {SESSION_TIMEOUT_MS_MIN} to {SESSION_TIMEOUT_MS_MAX} ms, not "
                f"{session_timeout_ms}",
            )
        wanted = list(topics)
        for topic in wanted:
            self._hosting.meta(topic)
        found = self._registry.assigned(group)
        if found is None:
            found, assignor = self._registry.new_assigned(group), assignor or default_assignor
        with self._admitted(found, by):
            if not found.has_member(member):
                self._registry.holdings.check_room()
            if found.join(member, wanted, assignor, session_timeout_ms, self._registry.steady.now_ms()):
                self._put(found)
        # The response describes this generation, once it is durable. A later generation may already exist without
        # being durable.
        membership = found.membership(member)
        await self._settle(found)
        return membership

    def _admitted(self, group: Group, by: str) -> AbstractContextManager[None]:
        return self._registry.holdings.admit(StateKind.GROUPS, group.name, by)

    async def register(self, group: str, *, by: str = NODE) -> None:
        """Create a group before its first member joins."""
        check_group_name(group)
        found = self._registry.get(group)
        if found is None:
            found = self._registry.new_assigned(group)
            with self._admitted(found, by):
                self._put(found)
        await self._settle(found)

    async def leave(self, group: str, member: str, generation: int | None = None) -> None:
        found = self.find(group)
        found.leave(member, generation)
        self._put(found)
        await self._settle(found)

    def heartbeat(self, group: str, member: str, generation: int) -> Membership:
        found = self.find(group)
        if not self._is_settled(found):
            raise BrokerError(
                Reason.REBALANCE_IN_PROGRESS, f"group {group!r} is starting generation {found.generation}; try again"
            )
        return found.heartbeat(member, generation, self._registry.steady.now_ms())

    def sync(self, group: str, member: str, generation: int) -> Membership:
        """A member's assignment in the named generation, if it is the current one."""
        return self.heartbeat(group, member, generation)

    def _put(self, group: Group) -> None:
        """Journal a change, or undo it if that fails."""
        try:
            self._registry.put(group)
        except (BrokerError, StorageFault):
            image = self._registry.image_of(group)
            if isinstance(image, GroupImage):
                group.restore(image)
            raise

    def _is_settled(self, group: Group) -> bool:
        return self._registry.journal.is_settled(self._registry.mark_of(group.name))

    async def _settle(self, group: AnyGroup) -> None:
        """Wait until the group's current state is durable."""
        await self._registry.journal.wait_committed(self._registry.mark_of(group.name))

    async def expire(self) -> dict[str, list[str]]:
        """Remove expired members and end rounds that are due; called periodically. Returns the removed members by
        group.
        """
        expired = {}
        async for group in in_slices(self._registry.all()):
            if self._registry.get(group.name) is not group:
                continue
            now_ms = self._registry.steady.now_ms()
            if isinstance(group, Group):
                members = group.expire(now_ms)
            else:
                members = self.classic.tick(group) if isinstance(group, ClassicGroup) else self.consumer.tick(group)
            if members:
                expired[group.name] = members
                if isinstance(group, Group):
                    self._put(group)
        await self._settle_all(expired)
        return expired

    async def topic_changed(self, topic: str) -> None:
        """Start a new generation of all groups that read a grown or deleted topic.

        Members of classic groups check topics themselves.
        """
        readers = [g for g in self._assigned() if any(topic in member.topics for member in g.members)]
        for group in readers:
            group.rebalance()
            self._put(group)
        await self._settle_all([group.name for group in readers])
        await self.consumer.topic_changed(topic)

    def _assigned(self) -> Iterable[Group]:
        return (group for group in self._registry.all() if isinstance(group, Group))

    async def _settle_all(self, names: Iterable[str]) -> None:
        """Wait for all changes. They were journalled before the wait; after it a group may have changed or been
        deleted.
        """
        await self._registry.journal.wait_committed(*map(self._registry.mark_of, names))

    # -- commits ---------------------------------------------------------------------------------------------

    def classic_service_for(self, group: str) -> ClassicGroups | ClassicMembers:
        """The service for members that join and sync."""
        found = self._registry.get(group)
        if self._classic_members is not None and isinstance(found, ConsumerGroup) and found.has_members:
            return self._classic_members
        return self.classic

    def commit_service_for(self, group: str) -> ClassicGroups | ConsumerGroups:
        """The service that checks commits with a generation or epoch."""
        return self.consumer if isinstance(self._registry.get(group), ConsumerGroup) else self.classic

    async def commit(
        self,
        group: str,
        member: str,
        generation: int,
        commits: Sequence[Commit],
        *,
        forward_only: bool = False,
        is_pattern: bool = False,
        by: str = NODE,
    ) -> None:
        """Commit as a member: only partitions that it owns, in the current generation.

        `is_pattern`: the commits cover all matching topics, and the member must own those that the group has assigned,
        at least one.
        """
        found = self.find(group)
        assigned = (
            [each for each in commits if found.is_assigned(each.topic, each.partition)] if is_pattern else commits
        )
        for commit in assigned or commits:
            found.check_owner(member, generation, commit.topic, commit.partition)
        found.heartbeat(member, generation, self._registry.steady.now_ms())
        await self._offsets.commit(group, commits, forward_only=forward_only, by=by)

    # -- lookup ----------------------------------------------------------------------------------------------

    def find(self, group: str) -> Group:
        """A broker-assigned group."""
        found = self._registry.assigned(group)
        if found is None:
            raise _unknown_group(group)
        return found

    def names(self) -> list[str]:
        """Names of groups that have or had members, or have commits."""
        return sorted(self._registry.names() | self._offsets.groups())

    def known(self) -> set[str]:
        """Names of groups that were registered or had members."""
        return self._registry.names()

    def describe(self, group: str) -> GroupView:
        found = self._registry.get(group)
        if isinstance(found, ClassicGroup):
            return _view_classic(found)
        if isinstance(found, ConsumerGroup):
            return _view_consumer(found, self._named)
        if found is not None:
            return _view_assigned(found)
        if not self._offsets.has_group(group):
            raise _unknown_group(group)
        return GroupView(group, State.EMPTY, 0, "", "", [])

    async def lag(self, group: str) -> list[LagReport]:
        """Lag of every partition that the group has committed to or reads; computed in slices."""
        committed = self._offsets.group_offsets(group)
        found = self._registry.get(group)
        if found is None and not committed:
            raise _unknown_group(group)
        owners: dict[Place, str] = {}
        # Only the members know what a classic leader assigned, so these partitions have no owner here.
        for member in self.describe(group).members:
            owners.update({(topic, p): member.member for topic, shares in member.shares.items() for p in shares})
        wanted = self._topics_read(found)
        subscribed = {(topic, number) for topic in wanted for number in range(self._partitions_of(topic))}
        rows = []
        async for place in in_slices(sorted({*committed, *owners, *subscribed})):
            if self._exists(place):
                rows.append(self._lag(group, place, committed.get(place), owners.get(place)))  # noqa: PERF401 - not of async ones
        return rows

    def _topics_read(self, found: AnyGroup | None) -> set[str]:
        if isinstance(found, Group):
            return {topic for member in found.members for topic in member.topics}
        if found is None:
            return set()
        if isinstance(found, ConsumerGroup):
            return found.topics_read()
        if self._metadata is None or found.protocol_type != self._metadata.protocol_type:
            return set()
        read: set[str] = set()
        for data in (data for member in found.members for _, data in member.protocols):
            with contextlib.suppress(ProtocolError):
                read.update(self._metadata.subscription(data)[0])
        return read

    def _named(self, shares: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
        """Convert topic ids to names; deleted topics are omitted."""
        names = ((self._hosting.name_of(topic), numbers) for topic, numbers in shares.items())
        return {name: sorted(numbers) for name, numbers in names if name is not None}

    def _partitions_of(self, topic: str) -> int:
        return self._registry.partitions_of(topic)

    def _exists(self, place: Place) -> bool:
        return place[1] < self._partitions_of(place[0])

    def _lag(self, group: str, place: Place, committed: Committed | None, member: str | None) -> LagReport:
        offset = None if committed is None else committed.offset
        try:
            hosted = self._hosting.partition(*place)
        except NotLeaderError:
            return LagReport(group, *place, offset, UNKNOWN_END, 0, member)
        lag = lag_of(offset, hosted.start_offset, hosted.high_watermark)
        return LagReport(group, *place, offset, hosted.high_watermark, lag, member)

    # -- deleting --------------------------------------------------------------------------------------------

    async def delete(self, group: str) -> None:
        """Delete a group without members, and its commits."""
        found = self._registry.get(group)
        if found is not None and found.has_members:
            raise BrokerError(Reason.GROUP_NOT_EMPTY, f"group {group!r} has members; stop them first")
        if found is None and not self._offsets.has_group(group):
            raise _unknown_group(group)
        # Both drops happen before any wait: a member that joins during the wait creates a new group.
        await self._registry.journal.wait_committed(self._offsets.drop_group(group), self._registry.drop(group))
        audit(f"group {group} deleted")

    async def delete_commits(self, group: str, places: Iterable[Place]) -> list[Place]:
        """Delete some commits of a group; returns those kept because members read their topics."""
        found = self._registry.get(group)
        if found is None and not self._offsets.has_group(group):
            raise _unknown_group(group)
        wanted = list(places)
        read = self._topics_read(found)
        refused = [place for place in wanted if place[0] in read]
        mark = self._offsets.drop_places(group, [place for place in wanted if place[0] not in read])
        await self._registry.journal.wait_committed(mark)
        audit(f"group {group}: commits deleted={len(wanted) - len(refused)}")
        return refused

    async def forget_unused(self, retention_ms: int) -> list[str]:
        """Delete old commits of groups without members, and such groups without commits; returns the deleted groups.

        A group that never had a commit has a shorter retention.
        """
        if retention_ms == UNLIMITED:
            return []
        now_ms = self._runtime.now_ms()
        deleted, marks = [], []
        async for name in in_slices(self.names()):
            committed = self._offsets.group_offsets(name)
            before_ms = now_ms - (retention_ms if committed else min(retention_ms, NEVER_COMMITTED_MS))
            found = self._registry.get(name)
            if found is not None and (found.has_members or found.changed_ms >= before_ms):
                continue
            old = [place for place, commit in committed.items() if commit.committed_ms < before_ms]
            marks.append(self._offsets.drop_places(name, old))
            if len(old) == len(committed):
                marks.append(self._registry.drop(name))
                deleted.append(name)
        await self._registry.journal.wait_committed(*marks)
        return deleted


def _unknown_group(group: str) -> BrokerError:
    return BrokerError(Reason.GROUP_NOT_FOUND, f"unknown group {group[:60]!r}; see `braid group list`")


def _view_classic(group: ClassicGroup) -> GroupView:
    members = [
        MemberView(m.member, m.instance, m.client, m.host, m.metadata(group.protocol), m.assignment)
        for m in group.members
    ]
    return GroupView(group.name, group.state, group.generation, group.protocol_type, group.protocol, members)


def _view_assigned(group: Group) -> GroupView:
    members = [MemberView(m.member, topics=m.topics, shares=group.assignment.get(m.member, {})) for m in group.members]
    state = State.STABLE if members else State.EMPTY
    return GroupView(group.name, state, group.generation, "", str(group.assignor), members, GroupKind.ASSIGNED)


def _view_consumer(
    group: ConsumerGroup, named: Callable[[Mapping[str, Iterable[int]]], dict[str, list[int]]]
) -> GroupView:
    members = [
        MemberView(
            each.member,
            each.instance,
            each.client,
            each.host,
            topics=each.topics,
            shares=named(each.held),
            epoch=each.epoch,
            rack=each.rack,
            pattern=each.pattern,
            target=named(each.target),
            is_translated=each.classic is not None,
        )
        for each in group.members
    ]
    return GroupView(group.name, group.state, group.epoch, "consumer", group.assignor, members, GroupKind.CONSUMER)
