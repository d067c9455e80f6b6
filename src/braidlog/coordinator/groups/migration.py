"""Converts a group with members between the classic and the consumer protocol (KIP-848).

Invariants: the conversion is one journal batch. Every member keeps the partitions that it reads, and revokes them
later by the rules of its new protocol.
"""

from collections.abc import Iterable, Mapping

from braidlog.codec.errors import ProtocolError
from braidlog.coordinator.consumer_groups.group import ConsumerGroup
from braidlog.coordinator.consumer_groups.messages import Change, ClassicSide, ConsumerMember, Held
from braidlog.coordinator.groups.classic_group import ClassicGroup
from braidlog.coordinator.groups.classic_service import ClassicGroups
from braidlog.coordinator.groups.group import TOPICS_MAX
from braidlog.coordinator.groups.member_metadata import MemberMetadata
from braidlog.coordinator.groups.messages import ClassicGroupImage, ClassicMember, State
from braidlog.coordinator.groups.registry import GroupRegistry
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.partition_registry import PartitionRegistry


class GroupConverter:
    """`Migrating` for groups whose member metadata can be decoded."""

    def __init__(
        self, registry: GroupRegistry, classic: ClassicGroups, metadata: MemberMetadata, hosting: PartitionRegistry
    ) -> None:
        self._registry = registry
        self._classic = classic
        self.metadata = metadata
        self._hosting = hosting

    def upgrade(self, name: str) -> None:
        """Convert a classic group to a consumer group. Does nothing for another kind of group or another protocol
        type.
        """
        found = self._registry.get(name)
        if not isinstance(found, ClassicGroup) or found.protocol_type != self.metadata.protocol_type:
            return
        try:
            members = self._reporting(found.members, found.generation)
        except ProtocolError:
            return
        if any(len(each.topics) > TOPICS_MAX for each in members):
            return
        if found.state is State.SYNCING:  # its members' partitions are unknown: they may be between two assignments
            raise BrokerError(
                Reason.COORDINATOR_LOADING, f"the leader of group {name!r} is computing the assignment; try again"
            )
        group = self._registry.new_consumer(name)
        self._registry.put_change(group, Change({each.member: each for each in members}))
        self._classic.dissolve(found)

    def _reporting(self, members: Iterable[ClassicMember], epoch: int) -> list[ConsumerMember]:
        owned: set[tuple[str, int]] = set()
        made = []
        for member in members:
            held: Held = {}
            for topic, numbers in self.by_id(self.metadata.shares(member.assignment)).items():
                held[topic] = {number: epoch for number in numbers if (topic, number) not in owned}
                owned.update((topic, number) for number in numbers)
            topics, _ = self.metadata.subscription(member.protocols[0][1])
            made.append(
                ConsumerMember(
                    member.member,
                    member.instance,
                    client=member.client,
                    host=member.host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    topics=sorted(set(topics)),
                    epoch=epoch,
                    previous_epoch=epoch,
                    held={topic: numbers for topic, numbers in held.items() if numbers},
                    target={topic: sorted(numbers) for topic, numbers in held.items() if numbers},
                    classic=ClassicSide(member.session_timeout_ms, member.protocols),
                )
            )
        return made

    def downgrade(self, group: ConsumerGroup) -> None:
        """Convert to a classic group, whose remaining members elect a leader and rebalance."""
        members = [
            ClassicMember(
                each.member,
                each.instance,
                each.client,
                each.host,
                each.classic.session_timeout_ms,
                each.rebalance_timeout_ms,
                each.classic.protocols,
                self.metadata.assignment(self.by_name(each.shares)),
            )
            for each in group.members
            if each.classic is not None
        ]
        common = set.intersection(*({name for name, _ in each.protocols} for each in members))
        protocol = next(name for name, _ in members[0].protocols if name in common)
        kind, now_ms = self.metadata.protocol_type, self._registry.session_ms()
        image = ClassicGroupImage(group.epoch, kind, protocol, members[0].member, members, is_assigned=True)
        classic = self._registry.new_classic(group.name)
        classic.restore(image, now_ms)
        classic.begin_round(now_ms)
        self._registry.replace(classic, group)

    def by_id(self, shares: Mapping[str, Iterable[int]]) -> dict[str, set[int]]:
        """Convert topic names to ids; deleted topics are omitted."""
        found = ((self._hosting.find(topic), numbers) for topic, numbers in shares.items())
        return {meta.topic_id: set(numbers) for meta, numbers in found if meta is not None}

    def by_name(self, shares: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
        names = ((self._hosting.name_of(topic), numbers) for topic, numbers in shares.items())
        return {name: sorted(numbers) for name, numbers in names if name is not None}
