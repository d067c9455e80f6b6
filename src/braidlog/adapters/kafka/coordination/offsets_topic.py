"""`__consumer_offsets` for Kafka's tools: an internal topic that shows which nodes coordinate groups.

Groups and commits are stored in the coordinators' shards in another format. The topic shows the number of shards, the
leader and the replicas of each. It shows no records: offsets begin and end at 0, a Fetch fails, and no client can
write, change or delete it.
"""

from typing import Final

from braidlog.coordinator.shards import SHARDS
from braidlog.wire.kafka.apis import OFFSETS_TOPIC_ID

__all__ = ["OFFSETS_PARTITIONS", "OFFSETS_TOPIC", "OFFSETS_TOPIC_ID", "TRANSACTIONS_TOPIC"]

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
"""Hidden; transactions are in the same shards, so its settings are those of the other topic."""
OFFSETS_PARTITIONS: Final = SHARDS
"""Also present on a single node, so that tools see the same after it joins a cluster."""
