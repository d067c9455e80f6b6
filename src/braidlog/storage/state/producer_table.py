"""Track idempotent producers, so that a retry is recognised and a sequence gap rejected.

The table has each producer's epoch and last five batches. Invariant: the table is a fold over the batches of the
log: applying them again to any earlier image gives the same table.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from braidlog.codec.batch.header import NO_PRODUCER, BatchHeader
from braidlog.codec.batch.records import NO_NUMBER, EndMarker
from braidlog.model.errors import BrokerError, Reason

BATCHES_REMEMBERED = 5
"""The most batches that a Kafka client has in flight: no older retry can arrive."""

PRODUCERS_PER_PARTITION_MAX = 100_000
"""Above this, the producers idle for longest are removed."""

_SEQUENCES = 2**31


class WrittenBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class Producer(msgspec.Struct, array_like=True):
    """A producer's recent batches, oldest first."""

    producer_id: int
    epoch: int
    timestamp_ms: int
    batches: list[WrittenBatch]
    coordinator_epoch: int = -1
    """The highest coordinator epoch in this producer's markers."""
    ended: int = NO_NUMBER
    """The number of its last transaction that a marker has ended; the numbers ascend."""
    starts: bool = False
    """A marker began its epoch and no batch followed yet: the first batch has sequence 0."""


def last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES


class ProducerTable:
    """Call `check` before an append and `apply` after it."""

    def __init__(self, producers: Iterable[Producer] = ()) -> None:
        self._producers = {producer.producer_id: producer for producer in producers}
        self._heard_ms: dict[int, int] = {}
        """When this process last received a batch of each producer, by its own clock; not part of the fold."""

    def __len__(self) -> int:
        return len(self._producers)

    def image(self) -> list[Producer]:
        """Return copies of the producers: the image is encoded later, when the live ones may have changed."""
        return [
            Producer(p.producer_id, p.epoch, p.timestamp_ms, list(p.batches), p.coordinator_epoch, p.ended, p.starts)
            for p in self._producers.values()
        ]

    def find(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """Return the earlier batch that this one repeats, or None if it is new; raise if it must not be appended.

        An unknown producer may start at any sequence: retention may have deleted its earlier batches.
        """
        if header.producer_id == NO_PRODUCER or header.is_control:
            return None
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise BrokerError(
                Reason.STALE_PRODUCER_EPOCH,
                f"producer {header.producer_id} epoch {header.producer_epoch} was fenced by epoch {producer.epoch}",
            )
        if header.base_sequence < 0:
            return None
        if header.producer_epoch > producer.epoch or producer.starts:
            expected = 0
        elif not producer.batches:
            expected = header.base_sequence
        else:
            last = last_sequence(header)
            for batch in producer.batches:
                if batch.base_sequence == header.base_sequence and batch.last_sequence == last:
                    return batch
            expected = (producer.batches[-1].last_sequence + 1) % _SEQUENCES
        if header.base_sequence != expected:
            raise BrokerError(
                Reason.OUT_OF_ORDER_SEQUENCE,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, {expected} is next",
            )
        return None

    def has_ended(self, producer_id: int, marker: EndMarker) -> bool:
        """Return whether the log already has this marker; raise if its coordinator has been replaced.

        Any coordinator may repeat a marker, also late: a second one would end the next transaction.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return False
        if -1 < marker.coordinator_epoch < producer.coordinator_epoch:
            raise BrokerError(
                Reason.NOT_COORDINATOR,
                f"coordinator epoch {marker.coordinator_epoch} of producer {producer_id} is over, "
                f"{producer.coordinator_epoch} is in force: nothing was ended",
            )
        return NO_NUMBER != marker.number <= producer.ended

    def apply(self, header: BatchHeader, heard_ms: int | None = None, end: EndMarker | None = None) -> None:
        """Apply a batch of the log; `end` is its marker if it is one, `heard_ms` its arrival if it arrives now."""
        if header.producer_id == NO_PRODUCER:
            return
        if heard_ms is not None:
            self._heard_ms[header.producer_id] = heard_ms
        producer = self._producers.pop(header.producer_id, None)
        if producer is None or header.producer_epoch > producer.epoch:
            told = (-1, NO_NUMBER) if producer is None else (producer.coordinator_epoch, producer.ended)
            starts = producer is not None and header.is_control
            producer = Producer(header.producer_id, header.producer_epoch, header.max_timestamp, [], *told, starts)
        producer.timestamp_ms = header.max_timestamp
        if end is not None:
            producer.coordinator_epoch = max(producer.coordinator_epoch, end.coordinator_epoch)
            producer.ended = max(producer.ended, end.number)
        if not header.is_control and header.base_sequence >= 0:
            producer.batches.append(
                WrittenBatch(
                    header.base_sequence,
                    last_sequence(header),
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                )
            )
            del producer.batches[:-BATCHES_REMEMBERED]
            producer.starts = False
        self._producers[header.producer_id] = producer  # last in the dict: most recently active
        if len(self._producers) > PRODUCERS_PER_PARTITION_MAX:
            self._forget(next(iter(self._producers)))

    def expire(self, before_ms: int, busy: Iterable[int]) -> None:
        """Remove producers idle since `before_ms`, except those with an open transaction.

        Idle time counts from the arrival of the last batch, not from its timestamp: a client may write last year's
        records today, and their retries must be recognised. The timestamp counts only for batches read when the log
        was opened.
        """
        keep = set(busy)
        heard = self._heard_ms
        gone = [
            p.producer_id
            for p in self._producers.values()
            if heard.get(p.producer_id, p.timestamp_ms) < before_ms and p.producer_id not in keep
        ]
        for producer_id in gone:
            self._forget(producer_id)

    def _forget(self, producer_id: int) -> None:
        del self._producers[producer_id]
        self._heard_ms.pop(producer_id, None)

    def last_batches(self) -> set[int]:
        """Return the base offsets of each producer's last batch: compaction keeps their headers for a later fold."""
        return {producer.batches[-1].base_offset for producer in self._producers.values() if producer.batches}
