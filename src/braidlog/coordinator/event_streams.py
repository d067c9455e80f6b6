"""Event streams: a sequence of versions per topic and key; an append must name the last version.

Invariants: a version is appended only if the writer expected its predecessor; check and append are one step. The index
is derived from the topic's records, from any listener, and is current before every lookup. An event is a record with a
key and an `aggregateVersion` header above the last version of its key. So a restart rebuilds the same index, even
after retention removed early events. A stream stays in its first partition after the topic grows. Transactional
records are not events, because they may be aborted later.
"""

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec

from braidlog.codec.batch.header import read_header
from braidlog.codec.batch.records import encode_batch
from braidlog.codec.batch.records_section import Row
from braidlog.codec.murmur import partition_for_key
from braidlog.coordinator.snapshot_store import Snapshot, StreamName
from braidlog.coordinator.state_limits import NODE, StateUsage
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.record import Header, Record
from braidlog.model.runtime.cooperative import yield_to_loop
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.fetch.fetch import CLIP_BYTES_MAX, Fetch
from braidlog.partition.fetch.record_reader import HERE_RECORDS_MAX, Limits
from braidlog.partition.opening import require_open
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.partition.produce.append import Acks, Append

VERSION_HEADER = "aggregateVersion"
READ_BYTES = 256 * 1024
"""Bytes of the log to read between two turns of the event loop."""
READ_EVENTS = 256
"""Likewise, for events that are looked up one by one."""
ANY_VERSION = -1
_VERSION_DIGITS_MAX = 18
STREAM_BYTES = 300
EVENT_BYTES = 80
"""Memory per stream and per event. Measured."""


class StreamPosition(msgspec.Struct, frozen=True):
    version: int
    partition: int
    offset: int


class SnapshotStore(Protocol):
    """Access to snapshots on any node."""

    async def find(self, stream: StreamName) -> Snapshot | None: ...

    async def save(self, stream: StreamName, snapshot: Snapshot, *, by: str = NODE) -> None:
        """Save a snapshot; an older version does not replace a newer one."""
        ...


def _shown(key: bytes) -> str:
    return repr(key[:60].decode("utf-8", "replace"))


class VersionConflict(BrokerError):  # noqa: N818 - one of the reasons, with its numbers
    def __init__(self, topic: str, key: bytes, *, current: int, expected: int) -> None:
        super().__init__(
            Reason.VERSION_CONFLICT,
            f"stream {_shown(key)} of {topic!r} is at version {current}, expected {expected}",
        )
        self.current = current
        self.expected = expected


class Events:
    """One stream: ascending versions, and the offset of each."""

    __slots__ = ("offsets", "versions")

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.offsets: list[int] = []

    @property
    def last(self) -> int:
        return self.versions[-1] if self.versions else 0


_NONE = Events()


class _PartitionIndex:
    """Streams of one partition, up to the offset read so far.

    `admit(key, is_new)` is called before each event, `dismiss(streams, events)` after removals.
    """

    def __init__(self, start: int, admit: Callable[[bytes, bool], None], dismiss: Callable[[int, int], None]) -> None:
        self.offset = start
        self.streams: dict[bytes, Events] = {}
        self.events = 0
        self.is_forgotten = False
        """The topic was deleted: running reads stop."""
        self._cuts = 0
        self._admit = admit
        self._dismiss = dismiss

    async def catch_up(self, hosted: Partition, fetch: Fetch) -> None:
        """Read new records, and yield to the event loop in between. Concurrent calls take each event once."""
        while self.offset < hosted.end_offset and not self.is_forgotten:
            self.offset = max(self.offset, hosted.start_offset)
            found = hosted.slice_at(self.offset, READ_BYTES)
            if found is None:
                break
            cuts = self._cuts
            await self._take(found.read(), fetch)
            if cuts == self._cuts:
                self.offset = max(self.offset, found.next_offset)
            if self.offset < hosted.end_offset:
                await yield_to_loop()

    async def _take(self, data: bytes, fetch: Fetch) -> None:
        position, cuts = 0, self._cuts
        while position < len(data):
            header = read_header(data, position)
            end = position + header.size_bytes
            if not header.is_transactional and not header.is_control:
                async for row in _rows(data[position:end], header.base_offset, header.last_offset, fetch):
                    if self.is_forgotten or cuts != self._cuts:
                        return
                    if row[2] is not None and row[4] and row[0] >= self.offset:
                        self._take_event(row[2], row[0], row[4])
            position = end

    def _take_event(self, key: bytes, offset: int, headers: tuple[Header, ...]) -> None:
        version = _version_in(headers)
        events = self.streams.get(key, _NONE)
        if version > events.last:
            self._admit(key, events is _NONE)
            if events is _NONE:
                events = self.streams[key] = Events()
            self.events += 1
            events.versions.append(version)
            events.offsets.append(offset)

    def drop_above(self, offset: int) -> None:
        """Drop events at or above an offset after a truncation; running reads of them stop."""
        self._cuts += 1
        self.offset = min(self.offset, offset)
        streams, events = len(self.streams), self.events
        for key, each in list(self.streams.items()):
            kept = bisect_left(each.offsets, offset)
            self.events -= len(each.offsets) - kept
            del each.offsets[kept:], each.versions[kept:]
            if not kept:
                del self.streams[key]
        self._dismiss(streams - len(self.streams), events - self.events)


async def _rows(batch: bytes, offset: int, last_offset: int, fetch: Fetch) -> AsyncIterator[Row]:
    """The records of a batch from an offset on; large batches are decoded off the event loop."""
    while offset <= last_offset:
        rows = await fetch.rows_of(batch, offset, Limits(CLIP_BYTES_MAX, HERE_RECORDS_MAX))
        if not rows:
            return
        for row in rows:
            yield row
        offset = rows[-1][0] + 1


def _version_in(headers: tuple[Header, ...]) -> int:
    """The version in a record's headers; 0 if it has none."""
    for name, value in headers:
        if name == VERSION_HEADER and value is not None and value.isdigit() and len(value) <= _VERSION_DIGITS_MAX:
            return int(value)
    return 0


class EventStreams:
    """Operations of event streams."""

    def __init__(
        self,
        hosting: PartitionRegistry,
        append: Append,
        fetch: Fetch,
        snapshots: SnapshotStore,
        runtime: Runtime,
        holdings: StateUsage,
    ) -> None:
        self._holdings = holdings
        self._hosting = hosting
        self._append = append
        self._fetch = fetch
        self._snapshots = snapshots
        self._runtime = runtime
        self.count = 0
        """Number of known streams."""
        self._indexes: dict[str, tuple[str, dict[int, _PartitionIndex]]] = {}

    async def append(
        self, topic: str, key: bytes, expected: int, value: bytes, headers: tuple[Header, ...] = ()
    ) -> StreamPosition:
        """Append the next event of a stream. `expected` is the version that the writer knows: 0 for none, ANY_VERSION
        for any.
        """
        number, events = await self._locate(topic, key)  # no wait between its last check and the append
        if self._append.checks_schemas(topic) or not self._hosting.partition(topic, number).is_open:
            await self._append.ready(topic, number)
            number, events = await self._locate(topic, key)
        if events is _NONE:
            self._check_room(key)
            self._holdings.check_room()
        current = events.last
        if expected not in (ANY_VERSION, current):
            raise VersionConflict(topic, key, current=current, expected=expected)
        version = current + 1
        kept = (*(h for h in headers if h[0] != VERSION_HEADER), (VERSION_HEADER, str(version).encode()))
        batch = encode_batch([value], keys=[key], headers=[kept], base_timestamp=self._runtime.now_ms())
        # The write happens before the first wait, so no other append comes between check and write.
        appended = await self._append.acknowledge(self._append.write(topic, number, batch), acks=Acks.ALL)
        return StreamPosition(version, number, appended.base_offset)

    async def partition_of(self, topic: str, key: bytes) -> int:
        """The partition of a stream, or of a new stream with this key."""
        return (await self._locate(topic, key))[0]

    async def version(self, topic: str, key: bytes) -> int:
        """The last version of a stream; 0 if it does not exist."""
        return (await self._locate(topic, key))[1].last

    async def read(
        self, topic: str, key: bytes, from_version: int = 1, count_max: int = 10_000
    ) -> list[tuple[int, Record]]:
        """The committed events of a stream from a version on, as (version, record), unless retention removed them."""
        number, events = await self._locate(topic, key)
        hosted = await require_open(self._hosting.partition(topic, number), self._hosting, self._runtime)
        first = bisect_left(events.versions, from_version)
        wanted = range(first, min(first + count_max, len(events.versions)))
        found: list[tuple[int, Record]] = []
        rows: dict[int, Row] = {}
        for place in wanted:
            offset = events.offsets[place]
            if offset not in rows and hosted.start_offset <= offset < hosted.high_watermark:
                piece = hosted.slice_at(offset, 1)
                rows = {} if piece is None else await self._rows_at(piece.read(), offset)
            if offset in rows:
                found.append((events.versions[place], Record(*rows[offset])))
            if place % READ_EVENTS == 0:
                await yield_to_loop()
        return found

    async def _rows_at(self, batch: bytes, offset: int) -> dict[int, Row]:
        """The record at an offset, and the following ones of its batch, which may hold the next events."""
        rows = await self._fetch.rows_of(batch, offset, Limits(CLIP_BYTES_MAX, HERE_RECORDS_MAX))
        return {row[0]: row for row in rows}

    # -- the index -------------------------------------------------------------------------------------------

    async def _locate(self, topic: str, key: bytes) -> tuple[int, Events]:
        """The partition and events of a stream; for a new stream the partition of its key.

        Every index is current when this returns: after a wait for one, all are checked again.
        """
        while True:
            meta = self._hosting.meta(topic)
            home = partition_for_key(key, meta.partitions)
            for number in (home, *range(meta.partitions)):
                hosted = self._hosting.partition(topic, number)
                index = self._index(hosted, topic, meta.topic_id, number)
                if index.offset < hosted.end_offset:
                    await index.catch_up(await require_open(hosted, self._hosting, self._runtime), self._fetch)
                    break
                events = index.streams.get(key)
                if events is not None:
                    return number, events
            else:
                return home, _NONE

    def _index(self, hosted: Partition, topic: str, topic_id: str, number: int) -> _PartitionIndex:
        known_id, indexes = self._indexes.get(topic, ("", {}))
        if known_id != topic_id:
            self._forget(topic)
            indexes = {}
            self._indexes[topic] = (topic_id, indexes)
        index = indexes.get(number)
        if index is None:
            index = indexes[number] = _PartitionIndex(hosted.start_offset, self._admit, self._dismiss)
            hosted.on_truncate(index.drop_above)
        return index

    def _admit(self, key: bytes, is_new: bool) -> None:  # noqa: FBT001 - called with an event's facts
        if is_new:
            self._check_room(key)
            self.count += 1
        self._holdings.bytes_held += EVENT_BYTES + (STREAM_BYTES if is_new else 0)

    def _dismiss(self, streams: int, events: int) -> None:
        self.count -= streams
        self._holdings.bytes_held -= streams * STREAM_BYTES + events * EVENT_BYTES

    def _check_room(self, key: bytes) -> None:
        """Raise if a new stream exceeds the limit."""
        limit = self._holdings.limits.streams_max
        if self.count >= limit:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"this node has reached its limit of {self.count} event streams, so {_shown(key)} was rejected: "
                "delete topics "
                "with streams, or raise state.streams_max",
            )

    def _forget(self, topic: str) -> None:
        _, indexes = self._indexes.pop(topic, ("", {}))
        for index in indexes.values():
            index.is_forgotten = True
            self._dismiss(len(index.streams), index.events)
            index.streams, index.events = {}, 0

    async def topic_changed(self, topic: str) -> None:
        """Forget the streams of a deleted topic."""
        if not self._hosting.exists(topic):
            self._forget(topic)

    # -- snapshots -------------------------------------------------------------------------------------------

    async def save_snapshot(self, topic: str, key: bytes, snapshot: Snapshot, *, by: str = NODE) -> None:
        """Save a snapshot of an existing version; an older one does not replace a newer one."""
        current = await self.version(topic, key)
        if not 0 <= snapshot.version <= current:
            raise VersionConflict(topic, key, current=current, expected=snapshot.version)
        await self._snapshots.save(self._name(topic, key), snapshot, by=by)

    async def snapshot(self, topic: str, key: bytes) -> Snapshot | None:
        return await self._snapshots.find(self._name(topic, key))

    def _name(self, topic: str, key: bytes) -> StreamName:
        return StreamName(topic, self._hosting.meta(topic).topic_id, key.hex())
