"""Snapshots of event streams: the last one of each stream, as its owner computed it.

Knows: the last snapshot of each stream. Refuses to know: which versions there are.
Invariants: a snapshot is settled before it is acknowledged; an older version does not replace a newer one; a topic's snapshots
end with it, and one of the same name begins without.
"""

from collections.abc import Sequence

import msgspec

from braidlog.coordinator.holdings import NODE, Holdings, StateKind
from braidlog.coordinator.journal import Table
from braidlog.coordinator.offsets import TopicId
from braidlog.model.errors import BrokerError, Reason


class Snapshot(msgspec.Struct, frozen=True):
    """A stream's state up to a version."""

    version: int
    payload: bytes


class KeptSnapshot(Snapshot, frozen=True):
    topic_id: str
    """A topic that was deleted and made again is another."""


class StreamName(msgspec.Struct, frozen=True, array_like=True):
    """Of a stream of the topic with this id."""

    topic: str
    topic_id: str
    key: str
    """In hex."""

    @property
    def counted_as(self) -> str:
        return snapshot_name((self.topic, self.key))


def snapshot_name(key: Sequence[str | int]) -> str:
    """What a snapshot is counted under, and which shard keeps it: its topic and its stream."""
    return f"{key[-2]}/{key[-1]}"


class Snapshots:
    """The use case."""

    def __init__(self, table: Table, holdings: Holdings, topic_id: TopicId) -> None:
        self._table = table
        self._holdings = holdings
        self._topic_id = topic_id
        # A crash came between the topic's end and theirs.
        table.put_many([(key, None) for key, kept in table.items() if topic_id(str(key[0])) != kept.topic_id])

    def find(self, stream: StreamName) -> Snapshot | None:
        self._check_topic(stream)
        kept: KeptSnapshot | None = self._table.get(stream.topic, stream.key)
        return Snapshot(kept.version, kept.payload) if kept is not None and kept.topic_id == stream.topic_id else None

    async def save(self, stream: StreamName, snapshot: Snapshot, *, by: str = NODE) -> None:
        known = self.find(stream)
        if known is None or known.version <= snapshot.version:
            kept = KeptSnapshot(snapshot.version, snapshot.payload, stream.topic_id)
            with self._holdings.admitted(StateKind.SNAPSHOTS, stream.counted_as, by):
                mark = self._table.put(stream.topic, stream.key, value=kept)
            await self._table.journal.settled(mark)

    def _check_topic(self, stream: StreamName) -> None:
        """Refuse to answer for a topic that this node has not heard of yet, or not that it has gone."""
        if self._topic_id(stream.topic) != stream.topic_id:
            raise BrokerError(Reason.TOPIC_NOT_FOUND, f"no topic {stream.topic!r} with id {stream.topic_id}")

    async def topic_changed(self, topic: str) -> None:
        current = self._topic_id(topic)
        gone = [key for key, kept in self._table.items() if key[0] == topic and kept.topic_id != current]
        await self._table.journal.settled(self._table.put_many([(key, None) for key in gone]))
