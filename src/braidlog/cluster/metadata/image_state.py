"""State of the metadata as data: topics, nodes, users, rules, quotas, ids.

Does not handle: events (`image_checks.py`, `image_changes.py`).
"""

import msgspec

from braidlog.cluster import membership
from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata.events import Credential
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import no_topic, node_number, own_number
from braidlog.replication.assignment import Assignment

IMAGE_VERSION = 2
"""Format version of a stored `Image`."""
DELETED_KEPT_MS = 7 * 24 * 3600 * 1000
FIRST_PRODUCER_ID = 1000
_ENTITY = msgspec.json.Decoder(e.QuotaEntity)


class Node(msgspec.Struct, frozen=True):
    addr: str
    epoch: int


class ImageState(msgspec.Struct):
    """The state derived from the log. Only `apply` changes it (`image.py`)."""

    topics: dict[str, Topic] = {}
    deleted: dict[str, int] = {}
    """Deletion time by topic id: a folder of a deleted topic may be removed, one of an unknown topic may not."""
    nodes: dict[str, Node] = {}
    users: dict[str, dict[str, Credential]] = {}
    rules: list[e.AddRule] = []
    ids_taken: int = FIRST_PRODUCER_ID
    made: dict[str, dict[str, int]] = {}
    """By topic id and node: how many partitions the node has created. It never creates these again."""
    cluster: membership.Membership = msgspec.field(default_factory=membership.Membership)
    """The cluster's nodes; empty for a single node."""
    quotas: dict[str, dict[str, float]] = {}
    """By principal: the rates set at run time."""
    entity_quotas: dict[str, dict[str, float]] = {}
    """Rates of client ids and addresses, by the entity in JSON."""
    group_settings: dict[str, dict[str, int]] = {}
    """By consumer group: the settings set at run time."""
    version: int = IMAGE_VERSION

    def quota_rates(self) -> dict[e.QuotaEntity, dict[str, float]]:
        """All rates set at run time."""
        users = {e.QuotaEntity(name): rates for name, rates in self.quotas.items()}
        return users | {_ENTITY.decode(text): rates for text, rates in self.entity_quotas.items()}

    def made_by(self, node: str, topic: Topic) -> int:
        """How many partitions of a topic a node has created."""
        return self.made.get(topic.topic_id, {}).get(node, 0)

    def topic(self, name: str, topic_id: str | None = None) -> Topic:
        """The topic with this name. With an id, a newer topic of the same name does not match."""
        found = self.topics.get(name)
        if found is None or topic_id not in (None, found.topic_id):
            raise no_topic(name)
        return found

    def assignment(self, name: str, number: int) -> Assignment:
        topic = self.topic(name)
        if not 0 <= number < topic.partitions:
            raise BrokerError(
                Reason.PARTITION_NOT_FOUND, f"topic {name!r} has partitions 0 to {topic.partitions - 1}, not {number}"
            )
        return topic.assignments[number]

    def number_of(self, topic: str, node: str) -> int | None:
        """The number of a node by its name. The single holder of a topic has a number whatever its name."""
        return own_number(node) if node and node == self.topics[topic].holder else node_number(node)

    def rates_of(self, event: e.SetQuota) -> tuple[dict[str, dict[str, float]], str]:
        """The table and the key for the rates of this event's entity."""
        if event.entity is None:
            return self.quotas, event.principal or ""
        return self.entity_quotas, msgspec.json.encode(event.entity).decode()
