"""What the metadata log says now, as data: topics, nodes, users, rules, quotas, ids.

Knows: the fields of an image, and questions to them. Does not handle: events (`image_checks.py`, `image_changes.py`).
"""

import msgspec

from braidlog.cluster import events as e
from braidlog.cluster import membership
from braidlog.cluster.events import Credential
from braidlog.cluster.topic import Topic
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import no_topic, node_number, own_number
from braidlog.replication.assignment import Assignment

IMAGE_VERSION = 2
"""Of what `Image` is when it is written."""
DELETED_KEPT_MS = 7 * 24 * 3600 * 1000
FIRST_PRODUCER_ID = 1000
_ENTITY = msgspec.json.Decoder(e.QuotaEntity)


class Node(msgspec.Struct, frozen=True):
    addr: str
    epoch: int


class ImageState(msgspec.Struct):
    """The state that follows from the log. It changes by `apply` alone (`image.py`)."""

    topics: dict[str, Topic] = {}
    deleted: dict[str, int] = {}
    """Ids of deleted topics, and when: a folder of one of these may be removed, one of an unknown id may not."""
    nodes: dict[str, Node] = {}
    users: dict[str, dict[str, Credential]] = {}
    rules: list[e.AddRule] = []
    ids_taken: int = FIRST_PRODUCER_ID
    made: dict[str, dict[str, int]] = {}
    """By topic id and node: how many partitions of the topic that node has made. Of these it makes none again."""
    cluster: membership.Membership = msgspec.field(default_factory=membership.Membership)
    """The nodes, where there are several."""
    quotas: dict[str, dict[str, float]] = {}
    """By principal: the rates that were set at run time."""
    entity_quotas: dict[str, dict[str, float]] = {}
    """Those of client ids and addresses, by the entity in JSON."""
    group_settings: dict[str, dict[str, int]] = {}
    """By consumer group: the settings that were set at run time."""
    version: int = IMAGE_VERSION

    def quota_rates(self) -> dict[e.QuotaEntity, dict[str, float]]:
        """All rates that were set at run time."""
        users = {e.QuotaEntity(name): rates for name, rates in self.quotas.items()}
        return users | {_ENTITY.decode(text): rates for text, rates in self.entity_quotas.items()}

    def made_by(self, node: str, topic: Topic) -> int:
        """How many partitions of a topic a node has made."""
        return self.made.get(topic.topic_id, {}).get(node, 0)

    def topic(self, name: str, topic_id: str | None = None) -> Topic:
        """The topic; with an id, that one and not another that got its name."""
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
        """Of a node by its name. The single node that has a topic has one, whatever it is called."""
        return own_number(node) if node and node == self.topics[topic].holder else node_number(node)

    def rates_of(self, event: e.SetQuota) -> tuple[dict[str, dict[str, float]], str]:
        """Where the rates of this event's entity are kept."""
        if event.entity is None:
            return self.quotas, event.principal or ""
        return self.entity_quotas, msgspec.json.encode(event.entity).decode()
