"""`__consumer_offsets` as Kafka's tools look for it: an internal topic that tells which node coordinates groups.

Groups and commits are kept in the coordinator's log, which is no topic and has a form of its own. What is shown is true of that
log: who leads it. Records are not: offsets begin and end at 0, a Fetch is refused, and nobody writes, changes or deletes it.
"""

from typing import Final

from braidlog.adapters.kafka.services import Services
from braidlog.wire.kafka.apis import OFFSETS_TOPIC_ID

__all__ = ["OFFSETS_TOPIC", "OFFSETS_TOPIC_ID", "coordinators"]

OFFSETS_TOPIC: Final = "__consumer_offsets"


def coordinators(services: Services) -> list[int]:
    """The node that leads each of its partitions; -1: nobody does now."""
    found = services.routing.coordinator_of("")
    return [-1 if found is None else found]
