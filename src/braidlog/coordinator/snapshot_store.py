"""Snapshots of event streams: the last one of each stream, as computed by its client.

Invariants: a snapshot is settled before it is acknowledged. An older version does not replace a newer one. Snapshots
are deleted with their topic; a new topic of that name starts without any.
"""

from collections.abc import Sequence

import msgspec

from braidlog.coordinator.journal import Table
from braidlog.coordinator.offsets import TopicId
from braidlog.coordinator.state_limits import NODE, StateKind, StateUsage
from braidlog.model.errors import BrokerError, Reason


class Snapshot(msgspec.Struct, frozen=True):
    """A stream's state up to a version."""

    version: int
    payload: bytes


class KeptSnapshot(Snapshot, frozen=True):
    topic_id: str
    """Distinguishes a topic from a later one of the same name."""


class StreamName(msgspec.Struct, frozen=True, array_like=True):
    """Name of a stream in the topic with this id."""

    topic: str
    topic_id: str
    key: str
    """Hexadecimal."""

    @property
    def counted_as(self) -> str:
        return snapshot_name((self.topic, self.key))


def snapshot_name(key: Sequence[str | int]) -> str:
    """Topic and stream as one name, under which a snapshot is counted and assigned to a shard."""
    return f"{key[-2]}/{key[-1]}"


class Snapshots:
    """Operations of snapshots."""

    def __init__(self, table: Table, holdings: StateUsage, topic_id: TopicId) -> None:
        self._table = table
        self._holdings = holdings
        self._topic_id = topic_id
        # A crash came between the deletions of the topic and its snapshots.
        table.put_many([(key, None) for key, kept in table.items() if topic_id(str(key[0])) != kept.topic_id])

    def find(self, stream: StreamName) -> Snapshot | None:
        self._check_topic(stream)
        kept: KeptSnapshot | None = self._table.get(stream.topic, stream.key)
        return Snapshot(kept.version, kept.payload) if kept is not None and kept.topic_id == stream.topic_id else None

    async def save(self, stream: StreamName, snapshot: Snapshot, *, by: str = NODE) -> None:
        known = self.find(stream)
        if known is None or known.version <= snapshot.version:
            kept = KeptSnapshot(snapshot.version, snapshot.payload, stream.topic_id)
            with self._holdings.admit(StateKind.SNAPSHOTS, stream.counted_as, by):
                mark = self._table.put(stream.topic, stream.key, value=kept)
            await self._table.journal.wait_committed(mark)

    def _check_topic(self, stream: StreamName) -> None:
        """Raise for a topic whose creation or deletion this node has not applied yet."""
        if self._topic_id(stream.topic) != stream.topic_id:
            raise BrokerError(Reason.TOPIC_NOT_FOUND, f"unknown topic {stream.topic!r} with id {stream.topic_id}")

    async def topic_changed(self, topic: str) -> None:
        current = self._topic_id(topic)
        outdated = [key for key, kept in self._table.items() if key[0] == topic and kept.topic_id != current]
        await self._table.journal.wait_committed(self._table.put_many([(key, None) for key in outdated]))
