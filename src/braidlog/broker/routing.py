"""Which node answers for what, and where a client of one protocol reaches it.

Knows: leaders, the controller, the coordinators of groups and transactions, as the metadata has them; the address of each door of
each node, as the node registered it. Refuses to know: how any dialect says it, whether a node can be reached.
Invariant: what is told of another node is what that node said of itself; of this one, the address that the client can be sure of:
the configured one, else the one that it dialled.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from braidlog.cluster.membership import Member
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.coordinator.shards import STATE_TOPIC, shard_for_name
from braidlog.kv.replicated.slots import KEY_LOGS, LOG_TOPIC, SLOTS, log_of
from braidlog.model.address import Address
from braidlog.model.names import own_number
from braidlog.replication.assignment import Assignment

NAMED_SECONDS: Final = 30.0
"""So long clients are still told of a node that is taken for dead: most are back by then."""


class Broker(NamedTuple):
    """A node as clients of one protocol know it."""

    number: int
    host: str
    port: int
    rack: str = ""
    is_fenced: bool = False
    is_draining: bool = False


class Routing:
    """Questions to the image, so an answer is as new as the metadata of this node."""

    def __init__(self, metadata: Metadata, node: str) -> None:
        self._metadata = metadata
        self._fenced_since: dict[tuple[int, int], float] = {}
        """A registration that was taken for dead → when it was first asked for after that."""
        self.own_number = own_number(node)

    @property
    def has_other_nodes(self) -> bool:
        """Whether the cluster has a second node; a request never needs to know: it is served here, or handed on."""
        return len(self._members) > 1

    @property
    def numbers(self) -> list[int]:
        """Every node that is registered, alive or not."""
        return sorted(self._members) or [self.own_number]

    @property
    def epoch(self) -> int:
        """Grows with each registration; 0 of a node that is alone."""
        return max((member.registered.incarnation for member in self._members.values()), default=0)

    @property
    def controller(self) -> int:
        """The node that proposes first: the lowest number that lives (any node may propose)."""
        live = (number for number, member in self._members.items() if not member.is_fenced)
        return min(live, default=self.own_number)

    def coordinator_of(self, name: str) -> int | None:
        """The node that keeps a group, a transactional id or whatever else has that name; None if nobody does now."""
        return self.leader_of_shard(shard_for_name(name))

    def shard(self, number: int) -> Assignment | None:
        """Who holds a shard of the coordinators; None if there are none."""
        return self.assignment(STATE_TOPIC, number)

    def leader_of_shard(self, shard: int) -> int | None:
        """The node that coordinates a shard; None if it has no leader now. A node that is not registered leads all shards."""
        if not self._metadata.image.cluster.members:
            return self.own_number
        known = self.shard(shard)
        return None if known is None else known.leader

    @property
    def has_shards(self) -> bool:
        """Whether it is known who coordinates: a node that is not registered will, before its shards are made."""
        return not self._metadata.image.cluster.members or STATE_TOPIC in self._metadata.image.topics

    @property
    def has_slots(self) -> bool:
        """Whether the slots of keys are made."""
        return LOG_TOPIC in self._metadata.image.topics

    def slots(self) -> Sequence[Assignment]:
        """Who holds each slot of keys; none before slots are made."""
        topic = self._metadata.image.topics.get(LOG_TOPIC)
        return [] if topic is None else [topic.assignments[log_of(slot, topic.partitions)] for slot in range(SLOTS)]

    @property
    def key_logs(self) -> int:
        """How many logs the slots of keys are divided among."""
        topic = self._metadata.image.topics.get(LOG_TOPIC)
        return KEY_LOGS if topic is None else topic.partitions

    def has_partition(self, topic: str, number: int) -> bool:
        found = self._metadata.image.topics.get(topic)
        return found is not None and number < len(found.assignments)

    def assignment(self, topic: str, number: int) -> Assignment | None:
        """Who holds a replicated partition; None if it is this node's alone."""
        found = self._metadata.image.topics.get(topic)
        return None if found is None or found.holder else found.assignments[number]

    def is_held_alone(self, topic: str) -> bool:
        """Whether one node holds a topic by itself: other brokers follow it by name, and no node takes its leadership."""
        found = self._metadata.image.topics.get(topic)
        return found is not None and bool(found.holder)

    def brokers(self, door: str, own: Address) -> list[Broker]:
        """Every node that has this door, in order; `own` is where this client reaches this one."""
        members = self._members
        if not members:
            return [Broker(self.own_number, *own)]
        found = []
        for number, member in sorted(members.items()):
            at = own if number == self.own_number else member.addresses.get(door)
            if at is not None:
                found.append(Broker(number, *at, member.rack, member.is_fenced, member.is_draining))
        return found

    def named(self, door: str, own: Address, now: float) -> list[Broker]:
        """Those of them that clients are told of; `now` by the monotonic clock.

        Not only who lives: librdkafka 2.11 to 2.16 throws away a node that it is not told of any more, and then waits for it for
        minutes where it was a group's coordinator, though another is by now (its issue 5511).
        """
        dead = {(number, member.registered.incarnation) for number, member in self._members.items() if member.is_fenced}
        self._fenced_since = {each: self._fenced_since.get(each, now) for each in dead}
        gone = {number for (number, _), since in self._fenced_since.items() if now - since > NAMED_SECONDS}
        return [each for each in self.brokers(door, own) if each.number not in gone]

    def address(self, number: int, door: str, own: Address | None = None) -> Address | None:
        """Where a node's door is; None if it is not registered, is fenced, or has no such door."""
        if own is not None and number == self.own_number:
            return own
        member = self._members.get(number)
        return None if member is None or member.is_fenced else member.addresses.get(door)

    def leader_address(self, topic: str, number: int, door: str, own: Address | None = None) -> Address | None:
        """Where the leader of a replicated partition is reached; None if there is none, or it is not known where."""
        known = self.assignment(topic, number)
        return None if known is None or known.leader is None else self.address(known.leader, door, own)

    def is_live(self, number: int) -> bool:
        member = self._members.get(number)
        return member is not None and not member.is_fenced

    def node_with(self, folder_id: str) -> int | None:
        """The node that is registered with this folder."""
        for number, member in self._metadata.image.cluster.members.items():
            if member.registered.life.folder_id == folder_id:
                return int(number)
        return None

    def nodes_in(self, rack: str, door: str) -> tuple[int, ...]:
        """The nodes of a rack that its clients can be sent to; none if this one is there itself."""
        members = self._members
        own = members.get(self.own_number)
        if own is None or own.rack == rack:
            return ()
        return tuple(
            number
            for number, member in sorted(members.items())
            if member.rack == rack and door in member.addresses and not member.is_fenced and not member.is_draining
        )

    @property
    def _members(self) -> dict[int, Member]:
        return {int(number): member for number, member in self._metadata.image.cluster.members.items()}
