"""Batches of idempotent producers that were refused for now: those sent behind them are refused for now, too (ADR 10).

A producer has several batches in flight. The first may arrive before this node leads, or while too few replicas are
in sync, and the second when it could be written except for the gap that the first left. On
OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka renumbers its batches in *all* partitions, and so writes records a second time
whose first answer was lost with a node. After a retriable error it sends the batches again in order.

Invariants: a batch is rejected here only if it directly follows a rejected one, and once per rejection of that one:
if that one is not sent again, the log decides. The last `REFUSED_MAX` rejections are kept.
"""

from braidlog.codec.batch.header import NO_PRODUCER, BatchHeader
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.produce.append import SEQUENCES
from braidlog.wire.kafka.messages import data as d

REFUSED_MAX = 10_000
"""Maximum producers in partitions. Producers beyond it get the error for the gap."""


class RefusedBatches:
    """Call `check` before a batch is written; then `forget`, or `remember` if it was rejected with a retriable error."""

    def __init__(self) -> None:
        self.following: dict[int, int] = {}
        """Producer epoch in a partition → the first sequence number after its rejected batch. Nearly always empty:
        the fast path tests that first.
        """

    def check(self, topic: d.ProduceRequestTopic, partition: int, header: BatchHeader) -> None:
        if self.following.get(_key(topic, partition, header)) == header.base_sequence:
            raise BrokerError(
                Reason.NOT_ENOUGH_REPLICAS,
                f"sequence {header.base_sequence} of producer {header.producer_id} follows a rejected batch: "
                "nothing was written; send that batch again first",
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
    """Key by the request's topic name or id, which may not exist here yet. A hash keeps it short; a collision causes
    one needless rejection.
    """
    return hash((topic.name, topic.topic_id, partition, header.producer_id, header.producer_epoch))
