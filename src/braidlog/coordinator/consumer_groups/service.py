"""Operations of consumer groups (KIP-848): the heartbeat that joins, reports and leaves; commits; expiry.

Invariants: state sent to a member is durable first. A change that cannot be journalled does not happen. One heartbeat
at a time computes targets, in slices, and a joining member receives only targets that include it.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from braidlog.coordinator.consumer_groups.assignors import ASSIGNORS, Target
from braidlog.coordinator.consumer_groups.group import NO_CHANGE, ConsumerGroup, unknown_member
from braidlog.coordinator.consumer_groups.messages import JOIN, LEAVE, PAUSE, Change, Heartbeat, HeartbeatAnswer
from braidlog.coordinator.consumer_groups.subscriptions import Pattern, compile_pattern
from braidlog.coordinator.groups.group import SESSION_TIMEOUT_MS_MAX, SESSION_TIMEOUT_MS_MIN
from braidlog.coordinator.groups.registry import GroupRegistry
from braidlog.coordinator.offsets import Commit, Offsets, check_group_name
from braidlog.coordinator.state_limits import NODE, StateKind
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.cooperative import yield_to_loop
from braidlog.model.runtime.runtime import Runtime, Wakeup
from braidlog.partition.partition_registry import PartitionRegistry

MEMBERS_AT_ONCE = 200
"""Number of targets per journal batch."""
ASSIGNING_SECONDS_MAX = 60.0
TURN_SECONDS = 0.01
HEARTBEAT_INTERVAL_MS_MIN = 10

MaySee = Callable[[str, str], bool]
"""may_see(principal, topic)"""


class _Turn:
    """Limits pattern matching per turn of the event loop: the cost of a pattern depends on its author."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._until = runtime.monotonic() + TURN_SECONDS

    async def step(self) -> None:
        if self._runtime.monotonic() >= self._until:
            await yield_to_loop()
            self._until = self._runtime.monotonic() + TURN_SECONDS


class ConsumerGroupSettings(msgspec.Struct, frozen=True):
    """Settings that members do not send themselves."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """Minimum and maximum of each setting."""
        return {
            "session_timeout_ms": (SESSION_TIMEOUT_MS_MIN, SESSION_TIMEOUT_MS_MAX),
            "heartbeat_interval_ms": (HEARTBEAT_INTERVAL_MS_MIN, self.session_timeout_ms - 1),
        }


SettingsOf = Callable[[str], ConsumerGroupSettings]
"""settings_of(group)"""


class GroupConversion(Protocol):
    """Converts a group with members to the other protocol."""

    def upgrade(self, name: str) -> None:
        """Convert a classic group, because a member sent a consumer group heartbeat."""
        ...

    def downgrade(self, group: ConsumerGroup) -> None:
        """Convert to a classic group, because the last consumer member left."""
        ...


class ConsumerGroups:
    """Operations of consumer groups."""

    def __init__(
        self,
        registry: GroupRegistry,
        offsets: Offsets,
        hosting: PartitionRegistry,
        runtime: Runtime,
        settings_of: SettingsOf,
        may_see: MaySee,
    ) -> None:
        self.settings_of = settings_of
        self._registry = registry
        self._offsets = offsets
        self._hosting = hosting
        self._runtime = runtime
        self._may_see = may_see
        self.migration: GroupConversion | None = None
        """None: only an empty group can change its protocol."""
        self._assigning: dict[ConsumerGroup, list[Wakeup]] = {}
        """Groups whose targets are being computed, and the waiting members."""

    # -- membership ------------------------------------------------------------------------------------------

    async def heartbeat(self, name: str, asked: Heartbeat) -> HeartbeatAnswer:
        """Join, report or leave, depending on the epoch."""
        check_group_name(name)
        asked.check()
        if asked.pattern:
            compile_pattern(asked.pattern)
        if asked.assignor not in (None, *ASSIGNORS):
            raise BrokerError(
                Reason.UNSUPPORTED_ASSIGNOR,
                f"unknown assignor {asked.assignor[:60]!r}; use one of {', '.join(ASSIGNORS)}",
            )
        if asked.epoch == JOIN and not asked.member:
            asked = msgspec.structs.replace(asked, member=str(uuid.uuid4()))
        if asked.epoch == JOIN and self.migration is not None:
            self.migration.upgrade(name)
        found = self._registry.consumer(name)
        if found is None and asked.epoch != JOIN:
            raise unknown_member(name, asked.member)
        group = found or self._registry.new_consumer(name)
        if asked.epoch in (LEAVE, PAUSE):
            answer = HeartbeatAnswer(asked.member, asked.epoch, None)
            self._keep(group, group.leave(asked))
        else:
            self._enter(group, asked)
            await self._assigned(group, asked)
            change, answer = group.reconcile(asked)
            self._keep(group, change)
        await self._registry.journal.wait_committed(self._registry.mark_of(name))
        return answer

    def _enter(self, group: ConsumerGroup, asked: Heartbeat) -> None:
        if not group.has_member(asked.member):
            self._registry.holdings.check_room()
        with self._registry.holdings.admit(StateKind.GROUPS, group.name, asked.by or NODE):
            self._keep(group, group.join_or_update(asked))
        group.note_heartbeat(asked.member, self._registry.session_ms())
        group.note_joined(asked.member)

    async def refresh(self, group: ConsumerGroup, member: str) -> None:
        """Recompute stale targets for a member without a new report."""
        await self._assigned(group, Heartbeat(member=member, epoch=group.epoch))
        self._check_present(group, member)

    def _keep(self, group: ConsumerGroup, change: Change) -> None:
        if change is not NO_CHANGE:
            self._registry.put_change(group, change)

    def tick(self, group: ConsumerGroup) -> list[str]:
        """Remove expired members, and convert the group if only classic members remain; returns the removed members.

        The changes are journalled when this returns.
        """
        change = group.expire(self._registry.session_ms(), self.settings_of(group.name).session_timeout_ms)
        if change.members:
            self._registry.put_change(group, change)
        if self.migration is not None and group.is_classic:
            self.migration.downgrade(group)
        return list(change.members)

    # -- targets ---------------------------------------------------------------------------------------------

    async def _assigned(self, group: ConsumerGroup, asked: Heartbeat) -> None:
        """Compute stale targets. A joining member waits for targets that include it."""
        wanted = group.version
        while group.is_stale and group.assigned_version < wanted:
            waiting = self._assigning.get(group)
            if waiting is None:
                await self._assign(group)
            elif asked.epoch != JOIN:
                return
            else:
                waiting.append(wakeup := self._runtime.wakeup())
                if not await wakeup.wait(ASSIGNING_SECONDS_MAX):
                    raise BrokerError(Reason.TIMED_OUT, f"group {group.name!r} is computing its assignment; join again")
            self._check_present(group, asked.member)

    def _check_present(self, group: ConsumerGroup, member: str) -> None:
        """Raise if the member or its group was removed during a wait."""
        if not self._exists(group):
            raise unknown_member(group.name, member)

    def _exists(self, group: ConsumerGroup) -> bool:
        """Whether this is still the group of that name. Writing a removed group would restore it."""
        return self._registry.get(group.name) is group

    async def _assign(self, group: ConsumerGroup) -> None:
        self._assigning[group] = []
        try:
            await self._resolve(group)
            version = group.version
            work = group.compute_targets(self._topic_of)
            target: Target | None = None
            while target is None:
                try:
                    next(work)
                except StopIteration as ended:
                    target = ended.value
                else:
                    await yield_to_loop()
            await self._retarget(group, target, version)
        finally:
            for wakeup in self._assigning.pop(group):
                wakeup.wake()

    async def _resolve(self, group: ConsumerGroup) -> None:
        """Match each new pattern against all topics. Topics created later are matched by `topic_changed`."""
        turn = _Turn(self._runtime)
        used = group.patterns_used()
        for key in group.patterns.keys() - used:
            del group.patterns[key]
        for by, text in used - group.patterns.keys():
            pattern = group.patterns[by, text] = Pattern(text)
            for topic in self._hosting.names():
                await turn.step()
                if pattern.matches(topic) and self._hosting.exists(topic) and self._may_see(by, topic):
                    pattern.topics.add(topic)

    def _topic_of(self, name: str) -> tuple[str, int] | None:
        found = self._hosting.find(name)
        return None if found is None else (found.topic_id, found.partitions)

    async def _retarget(self, group: ConsumerGroup, target: Target, version: int) -> None:
        """Journal the new targets in batches, and then their epoch."""
        is_changed = False
        names = list(target)
        for first in range(0, len(names), MEMBERS_AT_ONCE):
            if first:
                await yield_to_loop()
            if not self._exists(group):
                return
            members = group.members_with_new_target(
                {name: target[name] for name in names[first : first + MEMBERS_AT_ONCE]}
            )
            if members:
                is_changed = True
                self._registry.put_change(group, Change(members))
        if self._exists(group) and group.needs_epoch(is_changed=is_changed):
            self._registry.put_change(group, Change({}, group.epoch + 1, group.chosen_assignor()))
        group.assigned_version = version

    async def topic_changed(self, topic: str) -> None:
        """React to a new, grown or deleted topic: the next heartbeat of a subscribed group recomputes targets."""
        turn = _Turn(self._runtime)
        exists = self._hosting.exists(topic)
        for group in self._registry.all():
            await turn.step()
            if isinstance(group, ConsumerGroup):
                for _ in group.topic_changed(topic, exists=exists, may_see=self._may_see):
                    await turn.step()

    # -- commits ---------------------------------------------------------------------------------------------

    async def commit(
        self,
        group: str,
        member: str,
        epoch: int,
        commits: Sequence[Commit],
        *,
        instance: str | None = None,  # noqa: ARG002 - as in classic groups; the member id suffices here
        by: str = NODE,
    ) -> None:
        """Commit as a member in its current epoch, or in an older one for partitions it held since; or for a group
        without members.
        """
        self._check(group, member, epoch, commits)
        await self._offsets.commit(group, commits, by=by)

    def check_transactional(self, group: str, member: str, epoch: int, instance: str | None) -> None:  # noqa: ARG002
        """Raise for a transactional commit by a removed or outdated member. A commit without member data passes."""
        if not member and epoch < 0:
            return
        try:
            self._check(group, member, epoch, ())
        except BrokerError as error:
            if error.reason is not Reason.STALE_MEMBER_EPOCH:
                raise
            # Transactions know generations only; a client handles both errors alike.
            raise BrokerError(Reason.STALE_GENERATION, str(error)) from None

    def check_fetch(self, group: str, member: str | None, epoch: int) -> None:
        """Raise for an offset fetch by a removed or outdated member. A fetch without member data passes."""
        if isinstance(self._registry.get(group), ConsumerGroup) and (member or epoch >= 0):
            self._check(group, member or "", epoch, ())

    def _check(self, name: str, member: str, epoch: int, commits: Sequence[Commit]) -> None:
        group = self._registry.consumer(name)
        if group is None:
            raise unknown_member(name, member)
        ids = {topic: self._topic_of(topic) for topic in {commit.topic for commit in commits}}
        places = [(found[0], commit.partition) for commit in commits if (found := ids[commit.topic]) is not None]
        group.check_commit(member, epoch, places)
