"""Batches of idempotent producers that were refused for now: those sent behind them are refused for now, too (ADR 10).

A producer has several batches under way. The first may come before this node leads, or while too few replicas are in sync, and
the second when it could be written but for the gap that the first has left. That gap is nobody's fault; but librdkafka, told of
one (OUT_OF_ORDER_SEQUENCE_NUMBER), numbers its batches anew in *all* partitions, and so writes a second time what another one
has in its log, whose answer was lost with a node. Told to try again, it sends them again in their order.

Knows: where the batch behind a refused one begins. Refuses to know: logs, and why one was refused.
Invariants: only what directly follows a refused batch is refused here, and once for each time that the one before it is: if that
one is left out, the log judges. The last `REFUSED_MAX` are remembered.
"""

from braidlog.codec.batch import NO_PRODUCER, BatchHeader
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.append import SEQUENCES
from braidlog.wire.kafka.messages import data as d

REFUSED_MAX = 10_000
"""Producers in partitions. One beyond is told of the gap."""


class RefusedBatches:
    """`check` before a batch is written; then `forget`, or `remember` if it is refused and its producer will send it again."""

    def __init__(self) -> None:
        self.following: dict[int, int] = {}
        """A producer's epoch in a partition → the first sequence number behind what was refused. Empty nearly always: who is in
        a hurry looks at it first."""

    def check(self, topic: d.ProduceRequestTopic, partition: int, header: BatchHeader) -> None:
        if self.following.get(_key(topic, partition, header)) == header.base_sequence:
            raise BrokerError(
                Reason.NOT_ENOUGH_REPLICAS,
                f"sequence {header.base_sequence} of producer {header.producer_id} follows a batch that was refused: "
                "nothing was written, send that one again first",
            )

    def remember(self, topic: d.ProduceRequestTopic, partition: int, header: BatchHeader) -> None:
        if header.producer_id == NO_PRODUCER or header.base_sequence < 0:
            return
        key = _key(topic, partition, header)
        self.following.pop(key, None)
        self.following[key] = (header.base_sequence + header.last_offset_delta + 1) % SEQUENCES
        if len(self.following) > REFUSED_MAX:
            del self.following[next(iter(self.following))]

    def forget(self, topic: d.ProduceRequestTopic, partition: int, header: BatchHeader) -> None:
        self.following.pop(_key(topic, partition, header), None)


def _key(topic: d.ProduceRequestTopic, partition: int, header: BatchHeader) -> int:
    """By what the request calls the topic, which may be one that is not here yet. A hash: it is short, however long that is, and
    who shares one by chance is refused once more than needed."""
    return hash((topic.name, topic.topic_id, partition, header.producer_id, header.producer_epoch))
