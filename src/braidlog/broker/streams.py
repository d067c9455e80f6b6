"""Streams of events: per topic and key a sequence of versions, appended only by who knows the last one.

Knows: versions, and where each is. Refuses to know: what events mean, how they are packed.
Invariants: version n+1 of a key is appended only by a writer that expected n; the check and the append are one step. The index
is a fold over the topic's records (whichever door wrote them): built when a topic is first used so, caught up before every
question.
"""

import msgspec

from braidlog.broker.append import Acks, Append
from braidlog.broker.ports import World
from braidlog.broker.topics import Topics
from braidlog.cluster.journal import Table
from braidlog.codec.murmur import partition_for_key
from braidlog.codec.records import decode_batch, encode_batch
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.record import Header, Record

VERSION_HEADER = "aggregateVersion"
READ_BYTES = 1024 * 1024
ANY_VERSION = -1


class StreamPosition(msgspec.Struct, frozen=True):
    version: int
    partition: int
    offset: int


class Snapshot(msgspec.Struct, frozen=True):
    """A stream's state up to a version, as its owner computed it."""

    version: int
    payload: bytes


class VersionConflict(BrokerError):  # noqa: N818 - it is one of the reasons, with its numbers
    def __init__(self, topic: str, key: bytes, *, current: int, expected: int) -> None:
        super().__init__(
            Reason.VERSION_CONFLICT,
            f"stream {key[:60]!r} of {topic!r} is at version {current}, the writer expected {expected}",
        )
        self.current = current
        self.expected = expected


class _PartitionIndex:
    """key → offsets of its versions, in order, as far as the log was read."""

    def __init__(self, start: int) -> None:
        self.offset = start
        self.offsets: dict[bytes, list[int]] = {}


class EventStreams:
    """The use case."""

    def __init__(self, topics: Topics, append: Append, snapshots: Table, world: World) -> None:
        self._topics = topics
        self._append = append
        self._snapshots = snapshots
        self._world = world
        self._indexes: dict[tuple[str, str, int], _PartitionIndex] = {}

    async def append(
        self, topic: str, key: bytes, expected: int, value: bytes, headers: tuple[Header, ...] = ()
    ) -> StreamPosition:
        """Append the next event of a stream. `expected` is the version the writer knows: 0 for none, ANY_VERSION for any."""
        number = partition_for_key(key, self._topics.meta(topic).partitions)
        current = len(self._index(topic, number).offsets.get(key, ()))
        if expected not in (ANY_VERSION, current):
            raise VersionConflict(topic, key, current=current, expected=expected)
        version = current + 1
        kept = (*(h for h in headers if h[0] != VERSION_HEADER), (VERSION_HEADER, str(version).encode()))
        batch = encode_batch([value], keys=[key], headers=[kept], base_timestamp=self._world.now_ms())
        # The append itself happens before the first wait, so nobody can come between the check and it.
        appended = await self._append.append(topic, number, batch, acks=Acks.ALL)
        return StreamPosition(version, number, appended.base_offset)

    def version(self, topic: str, key: bytes) -> int:
        """The last version of a stream; 0 if there is none."""
        number = partition_for_key(key, self._topics.meta(topic).partitions)
        return len(self._index(topic, number).offsets.get(key, ()))

    def read(self, topic: str, key: bytes, from_version: int = 1, count_max: int = 10_000) -> list[tuple[int, Record]]:
        """(version, record) of a stream's events from a version on, those that are committed."""
        number = partition_for_key(key, self._topics.meta(topic).partitions)
        hosted = self._topics.partition(topic, number)
        offsets = self._index(topic, number).offsets.get(key, [])
        start = max(from_version, 1)
        found = []
        for version, offset in enumerate(offsets[start - 1 : start - 1 + count_max], start=start):
            if hosted.start_offset <= offset < hosted.high_watermark:
                data = hosted.log.read(offset, 1)
                rows = decode_batch(data, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
                found += [(version, Record(*row)) for row in rows if row[0] == offset]
        return found

    def _index(self, topic: str, number: int) -> _PartitionIndex:
        """The index, caught up with the log."""
        meta = self._topics.meta(topic)
        hosted = self._topics.partition(topic, number)
        place = (topic, meta.topic_id, number)
        index = self._indexes.get(place)
        if index is None:
            index = self._indexes[place] = _PartitionIndex(hosted.start_offset)
        while index.offset < hosted.end_offset:
            found = hosted.log.slice_at(max(index.offset, hosted.start_offset), READ_BYTES)
            if found is None:
                break
            self._take(index, found.read())
            index.offset = found.next_offset
        return index

    def _take(self, index: _PartitionIndex, data: bytes) -> None:
        position = 0
        while position < len(data):
            for offset, _, key, _, headers in decode_batch(
                data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
            ):
                if key is not None and offset >= index.offset and any(name == VERSION_HEADER for name, _ in headers):
                    index.offsets.setdefault(key, []).append(offset)
            position += int.from_bytes(data[position + 8 : position + 12], "big") + 12

    # -- snapshots -------------------------------------------------------------------------------------------

    async def save_snapshot(self, topic: str, key: bytes, snapshot: Snapshot) -> None:
        """Keep a snapshot; an older version does not replace a newer one."""
        if snapshot.version > self.version(topic, key):
            raise BrokerError(Reason.VERSION_CONFLICT, f"stream {key[:60]!r} has no version {snapshot.version} yet")
        known = self.snapshot(topic, key)
        if known is None or known.version <= snapshot.version:
            next_offset = self._snapshots.put(topic, key.hex(), value=snapshot)
            await self._world.durable(self._snapshots.journal.partition, next_offset)

    def snapshot(self, topic: str, key: bytes) -> Snapshot | None:
        self._topics.meta(topic)
        found: Snapshot | None = self._snapshots.get(topic, key.hex())
        return found
