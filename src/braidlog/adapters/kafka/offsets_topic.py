"""`__consumer_offsets` as Kafka's tools look for it: an internal topic that tells which nodes coordinate groups.

Groups and commits are kept in the coordinators' shards, which have a form of their own. What is shown is true of these: as many
partitions as there are shards, who leads each, and where its replicas are. Records are not: offsets begin and end at 0, a Fetch
is refused, and nobody writes, changes or deletes it.
"""

from typing import Final

from braidlog.coordinator.shards import SHARDS
from braidlog.wire.kafka.apis import OFFSETS_TOPIC_ID

__all__ = ["OFFSETS_PARTITIONS", "OFFSETS_TOPIC", "OFFSETS_TOPIC_ID", "TRANSACTIONS_TOPIC"]

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
"""Not shown; transactions are in the same shards, so its settings are those of the other."""
OFFSETS_PARTITIONS: Final = SHARDS
"""Also on a node that is alone, so that tools see the same before and after it has become one of several."""
