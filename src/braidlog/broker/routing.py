"""Finds the node that serves a request, and its address for clients of one protocol.

Leaders, the controller and coordinators come from the metadata; addresses come from each node's registration.
Does not handle: the answers of wire protocols, whether a node is reachable.
Invariant: another node's address is the one that it registered. This node's address is the configured one, else
the one that the client connected to.
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
"""How long clients still see a fenced node: most nodes return within this time."""


class Broker(NamedTuple):
    """A node as clients of one protocol see it."""

    number: int
    host: str
    port: int
    rack: str = ""
    is_fenced: bool = False
    is_draining: bool = False


class Routing:
    """Reads the metadata image; an answer is as new as this node's metadata."""

    def __init__(self, metadata: Metadata, node: str) -> None:
        self._metadata = metadata
        self._fenced_since: dict[tuple[int, int], float] = {}
        """Fenced registration → time of the first request after it was fenced."""
        self.own_number = own_number(node)

    @property
    def has_other_nodes(self) -> bool:
        """Return whether the cluster has a second node. Request handlers need not ask: a request is served here or
        forwarded."""
        return len(self._members) > 1

    @property
    def numbers(self) -> list[int]:
        """Return every registered node, live or not."""
        return sorted(self._members) or [self.own_number]

    @property
    def epoch(self) -> int:
        """Return a number that grows with each registration; 0 on a node without a cluster."""
        return max((member.registered.incarnation for member in self._members.values()), default=0)

    @property
    def controller(self) -> int:
        """Return the node that proposes changes first: the lowest live number. Any node may propose."""
        live = (number for number, member in self._members.items() if not member.is_fenced)
        return min(live, default=self.own_number)

    def coordinator_of(self, name: str) -> int | None:
        """Return the node that coordinates a group, transactional id or other name; None if its shard has no leader
        now."""
        return self.leader_of_shard(shard_for_name(name))

    def shard(self, number: int) -> Assignment | None:
        """Return the assignment of a coordinator shard; None if shards do not exist."""
        return self.assignment(STATE_TOPIC, number)

    def leader_of_shard(self, shard: int) -> int | None:
        """Return the node that coordinates a shard; None if it has no leader now. An unregistered node leads all
        shards."""
        if not self._metadata.image.cluster.members:
            return self.own_number
        known = self.shard(shard)
        return None if known is None else known.leader

    @property
    def has_shards(self) -> bool:
        """Return whether coordinators are known. An unregistered node coordinates everything, before its shards are
        created."""
        return not self._metadata.image.cluster.members or STATE_TOPIC in self._metadata.image.topics

    @property
    def has_slots(self) -> bool:
        """Return whether the slots of keys exist."""
        return LOG_TOPIC in self._metadata.image.topics

    def slots(self) -> Sequence[Assignment]:
        """Return the assignment of each slot of keys; empty before slots are created."""
        topic = self._metadata.image.topics.get(LOG_TOPIC)
        return [] if topic is None else [topic.assignments[log_of(slot, topic.partitions)] for slot in range(SLOTS)]

    @property
    def key_logs(self) -> int:
        """Return the number of logs that share the slots of keys."""
        topic = self._metadata.image.topics.get(LOG_TOPIC)
        return KEY_LOGS if topic is None else topic.partitions

    def has_partition(self, topic: str, number: int) -> bool:
        found = self._metadata.image.topics.get(topic)
        return found is not None and number < len(found.assignments)

    def assignment(self, topic: str, number: int) -> Assignment | None:
        """Return the assignment of a replicated partition; None if only this node holds it."""
        found = self._metadata.image.topics.get(topic)
        return None if found is None or found.holder else found.assignments[number]

    def is_held_alone(self, topic: str) -> bool:
        """Return whether one node alone holds a topic: other brokers follow it by name, and leadership never moves."""
        found = self._metadata.image.topics.get(topic)
        return found is not None and bool(found.holder)

    def brokers(self, door: str, own: Address) -> list[Broker]:
        """Return every node with this listener, in order; `own` is this node's address as the client sees it."""
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
        """Return the nodes to show to clients; `now` by the monotonic clock.

        Recently fenced nodes are included: librdkafka 2.11 to 2.16 discards a node that is missing from the
        metadata. If it was a group's coordinator, the client then waits minutes for it although another node took
        over (its issue 5511).
        """
        dead = {(number, member.registered.incarnation) for number, member in self._members.items() if member.is_fenced}
        self._fenced_since = {each: self._fenced_since.get(each, now) for each in dead}
        gone = {number for (number, _), since in self._fenced_since.items() if now - since > NAMED_SECONDS}
        return [each for each in self.brokers(door, own) if each.number not in gone]

    def address(self, number: int, door: str, own: Address | None = None) -> Address | None:
        """Return the address of a node's listener; None if the node is not registered, is fenced, or has no such
        listener."""
        if own is not None and number == self.own_number:
            return own
        member = self._members.get(number)
        return None if member is None or member.is_fenced else member.addresses.get(door)

    def leader_address(self, topic: str, number: int, door: str, own: Address | None = None) -> Address | None:
        """Return the address of a replicated partition's leader; None if it has no leader or no known address."""
        known = self.assignment(topic, number)
        return None if known is None or known.leader is None else self.address(known.leader, door, own)

    def is_live(self, number: int) -> bool:
        member = self._members.get(number)
        return member is not None and not member.is_fenced

    def node_with(self, folder_id: str) -> int | None:
        """Return the node that registered this data folder."""
        for number, member in self._metadata.image.cluster.members.items():
            if member.registered.life.folder_id == folder_id:
                return int(number)
        return None

    def nodes_in(self, rack: str, door: str) -> tuple[int, ...]:
        """Return the nodes of a rack that clients can be directed to; empty if this node is in that rack."""
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
