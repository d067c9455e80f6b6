"""All groups of this node by name, of all three kinds, as the journal stores them.

Invariants: a name belongs to one group of one kind, which changes in one journal batch. The generation continues
across kinds.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import msgspec

from braidlog.coordinator.consumer_groups.group import ConsumerGroup
from braidlog.coordinator.consumer_groups.messages import Change, ConsumerGroupImage, ConsumerMember
from braidlog.coordinator.groups.classic_group import INITIAL_DELAY_MS, ClassicGroup
from braidlog.coordinator.groups.group import Group, GroupImage
from braidlog.coordinator.journal import NOTHING, Key, Mark, Table, put_atomically
from braidlog.coordinator.state_limits import StateKind, StateUsage
from braidlog.model.clock import SteadyClock
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.runtime import Runtime

AnyGroup = Group | ClassicGroup | ConsumerGroup
K = TypeVar("K", Group, ClassicGroup, ConsumerGroup)
_WHO: dict[type[AnyGroup], str] = {
    Group: "the broker assigns partitions",
    ClassicGroup: "an elected leader assigns partitions",
    ConsumerGroup: "the coordinator assigns partitions (group.protocol=consumer)",
}


class GroupTables(NamedTuple):
    """Tables of the three kinds, and of consumer group members."""

    assigned: Table
    classic: Table
    consumer: Table
    members: Table


class GroupRegistry:
    """The groups in one journal."""

    def __init__(
        self,
        tables: GroupTables,
        partitions_of: Callable[[str], int],
        runtime: Runtime,
        holdings: StateUsage,
        initial_delay_ms: int = INITIAL_DELAY_MS,
    ) -> None:
        assigned, classic, consumer, members = tables
        self._tables: dict[type[AnyGroup], Table] = {
            Group: assigned,
            ClassicGroup: classic,
            ConsumerGroup: consumer,
        }
        self._members = members
        self._runtime = runtime
        self.holdings = holdings
        self.steady = SteadyClock(runtime)
        """Clock for the last heartbeats of members."""
        self.journal = assigned.journal
        self.partitions_of = partitions_of
        self._initial_delay_ms = initial_delay_ms
        self._groups: dict[str, AnyGroup] = {}
        self._marks: dict[str, Mark] = {}
        for (name,), image in assigned.items():
            group = self._groups[str(name)] = self._restored(str(name), image)
            group.revive(self.steady.now_ms())
        for (name,), image in classic.items():
            self._groups[str(name)] = restored = self.new_classic(str(name))
            restored.restore(image, self.session_ms())
        of_group: dict[str, list[ConsumerMember]] = {}
        for (name, _), member in members.items():
            of_group.setdefault(str(name), []).append(member)
        for (name,), image in consumer.items():
            self._groups[str(name)] = self._restored_consumer(str(name), image, of_group.get(str(name), []))
        for found in self._groups.values():
            self._count(found)

    def session_ms(self) -> int:
        """Monotonic time for sessions and rounds of classic groups."""
        return int(self._runtime.monotonic() * 1000)

    # -- lookup ----------------------------------------------------------------------------------------------

    def get(self, name: str) -> AnyGroup | None:
        return self._groups.get(name)

    def all(self) -> list[AnyGroup]:
        return list(self._groups.values())

    def names(self) -> set[str]:
        return set(self._groups)

    def assigned(self, name: str) -> Group | None:
        """The broker-assigned group of this name; None if it does not exist. Raises if another kind has members."""
        return self._of_kind(name, Group)

    def classic(self, name: str) -> ClassicGroup | None:
        """Likewise for classic groups."""
        return self._of_kind(name, ClassicGroup)

    def consumer(self, name: str) -> ConsumerGroup | None:
        """Likewise for consumer groups."""
        return self._of_kind(name, ConsumerGroup)

    def _of_kind(self, name: str, kind: type[K]) -> K | None:
        found = self._groups.get(name)
        if found is None or isinstance(found, kind):
            return found
        _refuse_kind(found)
        return None

    def new_assigned(self, name: str) -> Group:
        """A new group that is not stored yet. It continues the generation of an empty group of another kind."""
        return Group(name, self.partitions_of, generation=self._generation(name), members_max=self._members_max)

    def new_classic(self, name: str) -> ClassicGroup:
        return ClassicGroup(
            name,
            generation=self._generation(name),
            initial_delay_ms=self._initial_delay_ms,
            members_max=self._members_max,
        )

    def new_consumer(self, name: str) -> ConsumerGroup:
        return ConsumerGroup(name, epoch=self._generation(name), members_max=self._members_max)

    def _restored_consumer(self, name: str, image: ConsumerGroupImage, members: list[ConsumerMember]) -> ConsumerGroup:
        found = self.new_consumer(name)
        found.restore(image, members, self.session_ms())
        return found

    def _restored(self, name: str, image: GroupImage) -> Group:
        return Group(name, self.partitions_of, image, members_max=self._members_max)

    @property
    def _members_max(self) -> int:
        return self.holdings.limits.members_per_group_max

    def _generation(self, name: str) -> int:
        found = self._groups.get(name)
        return 0 if found is None else found.generation

    # -- storing ---------------------------------------------------------------------------------------------

    def put(self, group: AnyGroup) -> None:
        """Journal a group's current state. It becomes the group of that name."""
        self._journal(group, group.image, ())

    def replace(self, group: ClassicGroup, of: ConsumerGroup) -> None:
        """Journal a group that replaces another with the same members."""
        self._journal(group, group.image, [(self._members, (of.name, each.member), None) for each in of.members])

    def put_change(self, group: ConsumerGroup, change: Change) -> None:
        """Journal a change and apply it to the group. It becomes the group of that name."""

        def image() -> ConsumerGroupImage:
            if change.epoch is None:
                return group.image()
            return msgspec.structs.replace(group.image(), epoch=change.epoch, assignor=change.assignor)

        self._journal(
            group, image, [(self._members, (group.name, name), member) for name, member in change.members.items()]
        )
        group.apply(change, self.session_ms())
        self._count(group)

    def _journal(
        self,
        group: AnyGroup,
        image: Callable[[], msgspec.Struct],
        more: Iterable[tuple[Table, Key, msgspec.Struct | None]],
    ) -> None:
        before, group.changed_ms = group.changed_ms, self._runtime.now_ms()
        entries: list[tuple[Table, Key, msgspec.Struct | None]] = [
            (table, (group.name,), image() if kind is type(group) else None)
            for kind, table in self._tables.items()
            if kind is type(group) or table.get(group.name) is not None
        ]
        try:
            self._marks[group.name] = put_atomically([*entries, *more])
        except BaseException:
            group.changed_ms = before
            raise
        self._put_in_place(group)

    def register_unstored(self, group: ClassicGroup) -> None:
        """Register a group without a generation, so that members can join. Nothing is stored yet."""
        self._put_in_place(group)

    def _put_in_place(self, group: AnyGroup) -> None:
        """Make this the group of that name."""
        before = self._groups.get(group.name)
        self._groups[group.name] = group
        self._count(group)
        if before is not None and before is not group:
            self._uncount(before)

    def _count(self, group: AnyGroup) -> None:
        """Update the memory count of a group."""
        held = group.held_bytes
        self.holdings.change(StateKind.GROUPS, group.name, held - group.counted_bytes)
        group.counted_bytes = held

    def _uncount(self, group: AnyGroup) -> None:
        self.holdings.change(StateKind.GROUPS, group.name, -group.counted_bytes)
        group.counted_bytes = 0

    def recount(self, group: ClassicGroup) -> None:
        """Update the memory count after changes that are not stored."""
        if self._groups.get(group.name) is group:
            self._count(group)

    def discard_new(self, group: ClassicGroup) -> None:
        """Remove a group that never had a generation, and restore a stored group of another kind under its name."""
        self._remove(group.name)
        image = self._tables[Group].get(group.name)
        if image is not None:
            self._put_in_place(self._restored(group.name, image))
        image = self._tables[ConsumerGroup].get(group.name)
        if image is not None:  # a replaced group had no members
            self._put_in_place(self._restored_consumer(group.name, image, []))

    def _remove(self, name: str) -> None:
        removed = self._groups.pop(name, None)
        if removed is not None:
            self._uncount(removed)

    def image_of(self, group: AnyGroup) -> object:
        """Stored state of a group; None if none exists."""
        return self._tables[type(group)].get(group.name)

    def drop(self, name: str) -> Mark:
        """Delete a group; complete when this returns, durable when the returned mark is settled."""
        self._remove(name)
        self._marks.pop(name, None)
        there = [table for table in self._tables.values() if table.get(name) is not None]
        return put_atomically([(table, (name,), None) for table in there])

    def forget(self) -> None:
        """Drop all groups from memory only: another node is now their coordinator."""
        for name in list(self._groups):
            self._remove(name)

    def mark_of(self, name: str) -> Mark:
        """The mark that must be settled before a response may show the group's current state."""
        return self._marks.get(name, NOTHING)


def _refuse_kind(found: AnyGroup) -> None:
    if found.has_members:
        raise BrokerError(
            Reason.WRONG_GROUP_KIND,
            f"group {found.name!r} has members for which {_WHO[type(found)]}; it can change its kind once they have "
            "left",
        )
