"""Consumer groups as their members use them: one heartbeat that joins, reports and leaves; commits; time.

Knows: when a change must be kept, when targets are made, which topics there are. Refuses to know: how a member asks.
Invariants: what a member is told is settled before it hears of it; a change that cannot be kept is not made; targets are made by
one heartbeat at a time, in slices, and a member that joins hears of none that was made without it.
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
from braidlog.coordinator.holdings import NODE, StateKind
from braidlog.coordinator.offsets import Commit, Offsets, check_group_name
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.slices import breathe
from braidlog.model.world import Wakeup, World
from braidlog.partition.hosting import Hosting

MEMBERS_AT_ONCE = 200
"""How many targets are kept in one batch of the journal."""
ASSIGNING_SECONDS_MAX = 60.0
TURN_SECONDS = 0.01
HEARTBEAT_INTERVAL_MS_MIN = 10

MaySee = Callable[[str, str], bool]
"""may_see(principal, topic)"""


class _Turn:
    """How long patterns are matched before others go on: what one takes depends on who wrote it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._until = world.monotonic() + TURN_SECONDS

    async def step(self) -> None:
        if self._world.monotonic() >= self._until:
            await breathe()
            self._until = self._world.monotonic() + TURN_SECONDS


class ConsumerGroupSettings(msgspec.Struct, frozen=True):
    """What members do not bring themselves."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """The least and the largest value of each."""
        return {
            "session_timeout_ms": (SESSION_TIMEOUT_MS_MIN, SESSION_TIMEOUT_MS_MAX),
            "heartbeat_interval_ms": (HEARTBEAT_INTERVAL_MS_MIN, self.session_timeout_ms - 1),
        }


SettingsOf = Callable[[str], ConsumerGroupSettings]
"""settings_of(group)"""


class Migrating(Protocol):
    """What changes a group with members from one kind to the other."""

    def upgrade(self, name: str) -> None:
        """A member reports to a group that elects a leader."""
        ...

    def downgrade(self, group: ConsumerGroup) -> None:
        """The last that reported has gone."""
        ...


class ConsumerGroups:
    """The use case."""

    def __init__(
        self,
        registry: GroupRegistry,
        offsets: Offsets,
        hosting: Hosting,
        world: World,
        settings_of: SettingsOf,
        may_see: MaySee,
    ) -> None:
        self.settings_of = settings_of
        self._registry = registry
        self._offsets = offsets
        self._hosting = hosting
        self._world = world
        self._may_see = may_see
        self.migration: Migrating | None = None
        """None: a group changes its kind only while it is empty."""
        self._assigning: dict[ConsumerGroup, list[Wakeup]] = {}
        """Groups whose targets are being made, and who waits for that."""

    # -- membership ------------------------------------------------------------------------------------------

    async def heartbeat(self, name: str, asked: Heartbeat) -> HeartbeatAnswer:
        """Join, report or leave, as the epoch says."""
        check_group_name(name)
        asked.check()
        if asked.pattern:
            compile_pattern(asked.pattern)
        if asked.assignor not in (None, *ASSIGNORS):
            raise BrokerError(
                Reason.UNSUPPORTED_ASSIGNOR, f"no assignor {asked.assignor[:60]!r}; there are {', '.join(ASSIGNORS)}"
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
            told = HeartbeatAnswer(asked.member, asked.epoch, None)
            self._keep(group, group.leave(asked))
        else:
            self._enter(group, asked)
            await self._assigned(group, asked)
            change, told = group.reconcile(asked)
            self._keep(group, change)
        await self._registry.journal.settled(self._registry.mark_of(name))
        return told

    def _enter(self, group: ConsumerGroup, asked: Heartbeat) -> None:
        if not group.has_member(asked.member):
            self._registry.holdings.check_room()
        with self._registry.holdings.admitted(StateKind.GROUPS, group.name, asked.by or NODE):
            self._keep(group, group.enter(asked))
        group.note_heartbeat(asked.member, self._registry.session_ms())
        group.note_joined(asked.member)

    async def refresh(self, group: ConsumerGroup, member: str) -> None:
        """Make targets if they have to be made, for one that reports nothing else."""
        await self._assigned(group, Heartbeat(member=member, epoch=group.epoch))
        self._check_present(group, member)

    def _keep(self, group: ConsumerGroup, change: Change) -> None:
        if change is not NO_CHANGE:
            self._registry.put_change(group, change)

    def tick(self, group: ConsumerGroup) -> list[str]:
        """Take out who is overdue, and let a group elect a leader in which nobody reports any more; returns who went. That is
        journalled when this returns."""
        change = group.expire(self._registry.session_ms(), self.settings_of(group.name).session_timeout_ms)
        if change.members:
            self._registry.put_change(group, change)
        if self.migration is not None and group.is_classic:
            self.migration.downgrade(group)
        return list(change.members)

    # -- targets ---------------------------------------------------------------------------------------------

    async def _assigned(self, group: ConsumerGroup, asked: Heartbeat) -> None:
        """See to it that targets are made if they have to be; who joins waits for those of which it is part."""
        wanted = group.version
        while group.is_stale and group.assigned_version < wanted:
            waiting = self._assigning.get(group)
            if waiting is None:
                await self._assign(group)
            elif asked.epoch != JOIN:
                return
            else:
                waiting.append(wakeup := self._world.wakeup())
                if not await wakeup.wait(ASSIGNING_SECONDS_MAX):
                    raise BrokerError(Reason.TIMED_OUT, f"group {group.name!r} is being divided; join again")
            self._check_present(group, asked.member)

    def _check_present(self, group: ConsumerGroup, member: str) -> None:
        """Anything may have happened to it meanwhile."""
        if not self._is_there(group):
            raise unknown_member(group.name, member)

    def _is_there(self, group: ConsumerGroup) -> bool:
        """Whether it is the one of its name still: writing anything of another would put it back."""
        return self._registry.get(group.name) is group

    async def _assign(self, group: ConsumerGroup) -> None:
        self._assigning[group] = []
        try:
            await self._resolve(group)
            version = group.version
            work = group.assigning(self._topic_of)
            target: Target | None = None
            while target is None:
                try:
                    next(work)
                except StopIteration as ended:
                    target = ended.value
                else:
                    await breathe()
            await self._retarget(group, target, version)
        finally:
            for wakeup in self._assigning.pop(group):
                wakeup.wake()

    async def _resolve(self, group: ConsumerGroup) -> None:
        """Let each pattern that is new look at all topics; those that come meanwhile show themselves."""
        turn = _Turn(self._world)
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
        """Keep the new targets, many members at a time, and then the epoch that they are of."""
        is_changed = False
        names = list(target)
        for first in range(0, len(names), MEMBERS_AT_ONCE):
            if first:
                await breathe()
            if not self._is_there(group):
                return
            members = group.retargeted({name: target[name] for name in names[first : first + MEMBERS_AT_ONCE]})
            if members:
                is_changed = True
                self._registry.put_change(group, Change(members))
        if self._is_there(group) and group.needs_epoch(is_changed=is_changed):
            self._registry.put_change(group, Change({}, group.epoch + 1, group.chosen_assignor()))
        group.assigned_version = version

    async def topic_changed(self, topic: str) -> None:
        """A topic came, has grown or is gone: the next heartbeat of a group that wants it looks at its targets."""
        turn = _Turn(self._world)
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
        instance: str | None = None,  # noqa: ARG002 - as of classic groups; a member's id says it all here
        by: str = NODE,
    ) -> None:
        """Commit as a member in its present epoch, or in an older one what it has had since; or for a group without any."""
        self._check(group, member, epoch, commits)
        await self._offsets.commit(group, commits, by=by)

    def check_transactional(self, group: str, member: str, epoch: int, instance: str | None) -> None:  # noqa: ARG002
        """Refuse a commit in a transaction by who is not, or no longer, a member; who says nothing of itself passes."""
        if not member and epoch < 0:
            return
        try:
            self._check(group, member, epoch, ())
        except BrokerError as error:
            if error.reason is not Reason.STALE_MEMBER_EPOCH:
                raise
            # Transactions know generations only: whoever stages commits can do the same about both.
            raise BrokerError(Reason.STALE_GENERATION, str(error)) from None

    def check_fetch(self, group: str, member: str | None, epoch: int) -> None:
        """Refuse to tell an old member, or one that was taken out, where to go on; who says nothing of itself passes."""
        if isinstance(self._registry.get(group), ConsumerGroup) and (member or epoch >= 0):
            self._check(group, member or "", epoch, ())

    def _check(self, name: str, member: str, epoch: int, commits: Sequence[Commit]) -> None:
        group = self._registry.consumer(name)
        if group is None:
            raise unknown_member(name, member)
        ids = {topic: self._topic_of(topic) for topic in {commit.topic for commit in commits}}
        places = [(found[0], commit.partition) for commit in commits if (found := ids[commit.topic]) is not None]
        group.check_commit(member, epoch, places)
