"""What a driver needs to know of a log before reading: from a server, or from a folder.

Provides topics, ends, offsets by time, and approximate record sizes. Does not handle: planning. `latest` is how far a
reader with this isolation may read now: before open transactions, and in a folder with `flush = ack` only durable
records.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from braidlog.client.drivers.kafka.bulk import EARLIEST, LATEST
from braidlog.client.errors import ClientError
from braidlog.codec.batch.records import decode_batch
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.settings import Flush
from braidlog.spark.connections import Connection
from braidlog.spark.source.planning import Range
from braidlog.spark.source.positions import Identities, Offsets, Place, identity
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.log.partition_log import PartitionLog

_SAMPLE_BYTES = 64 * 1024
_TICK_NS = 20_000_000
"""The resolution of file times, which depends on the kernel's tick."""
_LOOKS_MAX = 100
_SEGMENTS = (".log", ".swap")
_QUESTION_OFFSETS_MIN = 500_000
"""A server examines about 60,000 batches per request. If these cover fewer offsets, batches are small, and reading
them is cheaper than further requests."""
_COUNTED_AT_ONCE = 100_000


Choose = Callable[[dict[str, int]], Iterable[Place]]
"""Partition counts by topic → places."""


class Log(Protocol):
    identities: Identities
    """Identities of the topics that `topics` has returned, as of the last call."""

    def topics(self, named: Iterable[str] | None) -> dict[str, int]:
        """Return the partition count of each of these topics (all topics if None); missing topics are left out."""
        ...

    def look(self, named: Iterable[str] | None, choose: Choose, which: int) -> Offsets:
        """Return the start (EARLIEST) or end (LATEST) of the places that `choose` selects from the current topics."""
        ...

    def earliest(self, places: Iterable[Place]) -> Offsets: ...

    def latest(self, places: Iterable[Place]) -> Offsets: ...

    def at_times(self, timestamps: Mapping[Place, int]) -> dict[Place, int | None]:
        """Return each place's first offset at or after a time in ms."""
        ...

    def bytes_each(self, place: Place, start: int, end: int) -> float:
        """Return the approximate bytes per offset in [start, end)."""
        ...

    def count(self, ranges: Sequence[Range]) -> int | None:
        """Return the number of visible records in these ranges, each of another place, without reading them; None if
        they must be read."""
        ...

    def wait_beyond(self, ends: Mapping[Place, int], wait_ms: int) -> None:
        """Return when there may be more records, at the latest after this time."""
        ...

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None: ...

    def committed(self, group: str) -> Offsets: ...

    def close(self) -> None: ...


class ServerLog:
    """The log of a server or cluster."""

    def __init__(self, url: str, *, committed_only: bool) -> None:
        self._connection = Connection(url, committed_only=committed_only)
        self._reader = self._connection.reader
        self._told: dict[str, tuple[int, bytes]] = {}
        """Partition count and id of each topic, as of the last request."""
        self.identities: Identities = {}
        try:
            self._connection.reach()
        except ClientError:
            self._connection.close()
            raise

    def topics(self, named: Iterable[str] | None) -> dict[str, int]:
        names = None if named is None else list(named)
        if names == []:
            return {}
        return self._learn(names, self._connection.ask(lambda: self._reader.topics(names)))

    def _learn(self, asked: list[str] | None, described: dict[str, tuple[int, bytes]]) -> dict[str, int]:
        kept = {} if asked is None else {name: each for name, each in self._told.items() if name not in asked}
        self._told = kept | described
        self.identities |= {name: known for name, (_, topic_id) in described.items() if (known := identity(topic_id))}
        return _counts(described)

    def look(self, named: Iterable[str] | None, choose: Choose, which: int) -> Offsets:
        """Request topics and, concurrently, the offsets of the known topics, which rarely change. The offsets are
        used only if every topic still has the same id and partitions."""
        names = None if named is None else list(named)
        known = {name: each for name, each in self._told.items() if names is None or name in names}
        places = dict.fromkeys(choose(_counts(known)), which)
        if not places:
            return self._ends(choose(self.topics(names)), which)
        topics_now, offsets = self._connection.ask(lambda: self._reader.topics_and_offsets(names, places))
        counts = self._learn(names, topics_now)
        if offsets is None or topics_now != known:
            return self._ends(choose(counts), which)
        return {place: offset or 0 for place, offset in offsets.items()}

    def earliest(self, places: Iterable[Place]) -> Offsets:
        return self._ends(places, EARLIEST)

    def latest(self, places: Iterable[Place]) -> Offsets:
        return self._ends(places, LATEST)

    def _ends(self, places: Iterable[Place], which: int) -> Offsets:
        timestamps = dict.fromkeys(places, which)
        offsets = self._connection.ask(lambda: self._reader.offsets(timestamps)) if timestamps else {}
        return {place: offset or 0 for place, offset in offsets.items()}

    def at_times(self, timestamps: Mapping[Place, int]) -> dict[Place, int | None]:
        return self._connection.ask(lambda: self._reader.offsets(timestamps)) if timestamps else {}

    def bytes_each(self, place: Place, start: int, end: int) -> float:
        """Estimate from the batches at the start and in the middle of the range."""
        sizes, rows = 0, 0
        for at in {start, (start + end) // 2}:
            try:
                chunk = self._connection.ask(
                    lambda at=at: self._reader.fetch(place, at, bytes_max=_SAMPLE_BYTES, wait_ms=0)  # type: ignore[misc]
                )
            except ClientError:
                continue  # the size is a hint: reading the range will report the error
            sizes += len(chunk.data)
            rows += max(chunk.next_offset - at, 0)
        return sizes / rows if rows else 0.0

    def count(self, ranges: Sequence[Range]) -> int | None:
        left = {each.place: (each.start, each.end) for each in ranges}
        records = 0
        while left:
            try:
                counted = self._connection.ask(lambda left=left: self._reader.count(left))  # type: ignore[misc]
            except ClientError:
                return None  # another or an older server; if a range was deleted, reading it reports that
            records += sum(number for number, _ in counted.values())
            began, left = (
                left,
                {place: (at, left[place][1]) for place, (_, at) in counted.items() if at < left[place][1]},
            )
            if any(at == began[place][0] for place, (at, _) in left.items()):
                return None
            if left and sum(at - began[place][0] for place, (_, at) in counted.items()) < _QUESTION_OFFSETS_MIN:
                return None
        return records

    def wait_beyond(self, ends: Mapping[Place, int], wait_ms: int) -> None:
        with contextlib.suppress(ClientError):  # the next request reports the error
            self._connection.run(self._reader.wait_beyond(ends, wait_ms))

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        self._connection.ask(lambda: self._reader.commit(group, offsets))

    def committed(self, group: str) -> Offsets:
        return self._connection.ask(lambda: self._connection.driver.group_offsets(group))

    def close(self) -> None:
        self._connection.close()


class FolderLog:
    """A data folder, read without its lock: nothing is written, and a server may be writing to it."""

    def __init__(self, path: str, *, committed_only: bool) -> None:
        self._path = path
        self._committed_only = committed_only
        self._open: dict[Place, tuple[object, PartitionLog]] = {}
        self._folder = self._look()
        self.identities: Identities = {}

    def _look(self) -> DataFolder:
        return DataFolder(OsDisk(), self._path, SystemClock(), create=False, read_only=True)

    def topics(self, named: Iterable[str] | None) -> dict[str, int]:
        self._folder = self._look()
        every = {meta.name: meta.partitions for meta in self._folder.topics()}
        self.identities = {meta.name: identity(bytes.fromhex(meta.topic_id)) for meta in self._folder.topics()}
        if named is None:
            return {name: count for name, count in every.items() if not name.startswith("__")}
        return {name: every[name] for name in named if name in every}

    def look(self, named: Iterable[str] | None, choose: Choose, which: int) -> Offsets:
        places = choose(self.topics(named))
        return self.latest(places) if which == LATEST else self.earliest(places)

    def partition(self, place: Place) -> PartitionLog:
        """Return the current partition, reopened only if one of its files has changed."""
        folder = self._folder.partition_folder(*place)
        signature = _signature(folder)
        kept = self._open.get(place)
        if kept is None or kept[0] != signature:
            kept = self._open[place] = signature, self._opened(place, folder)
        return kept[1]

    def _opened(self, place: Place, folder: str) -> PartitionLog:
        """Open a partition whose server may replace or remove segments while we read their headers: then discard the
        result and retry."""
        for _ in range(_LOOKS_MAX):
            before = _segments(folder)
            try:
                opened = self._folder.open_partition(*place)
            except StorageFault:
                if _segments(folder) == before:
                    raise
                continue
            if _segments(folder) == before:
                return opened
        raise StorageFault(f"its files changed {_LOOKS_MAX} times while they were being read", folder)

    def earliest(self, places: Iterable[Place]) -> Offsets:
        return {place: self.partition(place).start_offset for place in places}

    def latest(self, places: Iterable[Place]) -> Offsets:
        return {place: self.readable_end(place) for place in places}

    def readable_end(self, place: Place) -> int:
        partition = self.partition(place)
        end = partition.end_offset
        if partition.settings.flush is Flush.ACK:
            end = min(end, _durable_end(partition))
        return partition.stable_below(end) if self._committed_only else end

    def at_times(self, timestamps: Mapping[Place, int]) -> dict[Place, int | None]:
        return {place: self._at_time(place, time_ms) for place, time_ms in timestamps.items()}

    def _at_time(self, place: Place, time_ms: int) -> int | None:
        partition, end = self.partition(place), self.readable_end(place)
        for batch in partition.find_batch_by_time(time_ms):
            for row in decode_batch(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
                if row[1] >= time_ms and row[0] >= partition.start_offset:
                    return row[0] if row[0] < end else None
        return None

    def bytes_each(self, place: Place, start: int, end: int) -> float:  # noqa: ARG002 - a port's signature
        partition = self.partition(place)
        first = partition.segments[0].base_offset
        return partition.size_bytes / max(partition.end_offset - first, 1)

    def count(self, ranges: Sequence[Range]) -> int | None:
        """Count records in indexes; what cannot be counted, because a node replaced a segment, must be read."""
        records = 0
        for each in ranges:
            at = each.start
            while at < each.end:
                try:
                    counted = self.partition(each.place).count(
                        at, each.end, committed_only=self._committed_only, batches_max=_COUNTED_AT_ONCE
                    )
                except (StorageFault, BrokerError):
                    return None
                if counted.next_offset == at:
                    return None
                records, at = records + counted.records, counted.next_offset
        return records

    def wait_beyond(self, ends: Mapping[Place, int], wait_ms: int) -> None:  # noqa: ARG002 - a port's signature
        """Wait for the full time: a folder does not notify of changes."""
        threading.Event().wait(wait_ms / 1000)

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:  # noqa: ARG002 - a port's signature
        raise AssertionError("the options refuse groupId with path")

    def committed(self, group: str) -> Offsets:  # noqa: ARG002 - a port's signature
        raise AssertionError("the options refuse groupId with path")

    def close(self) -> None:
        self._open.clear()


def _counts(topics: Mapping[str, tuple[int, bytes]]) -> dict[str, int]:
    return {name: partitions for name, (partitions, _) in topics.items()}


def _signature(folder: str) -> object:
    """Return names, sizes and times of files: records and the durable mark are written in place."""
    fresh_ns = SystemClock().now_ms() * 1_000_000 - _TICK_NS
    with contextlib.suppress(FileNotFoundError):
        entries = sorted(
            (each.name, (stat := each.stat()).st_size, stat.st_mtime_ns) for each in Path(folder).iterdir()
        )
        if all(modified_ns < fresh_ns for _, _, modified_ns in entries):
            return entries
    return object()  # a file was removed during the call, or the next change may have the same time


def _segments(folder: str) -> list[tuple[str, int]]:
    """Return the names of segments and compacted segments with their inodes: a compacted segment reuses an old
    name."""
    segments = []
    for each in Path(folder).iterdir():
        with contextlib.suppress(FileNotFoundError):
            if each.suffix in _SEGMENTS:
                segments.append((each.name, each.stat().st_ino))
    return sorted(segments)


def _durable_end(partition: PartitionLog) -> int:
    """Return the offset up to which every mark was synced: a read-only open includes complete records that are not
    durable."""
    for segment in partition.segments:
        if segment.mark.next_offset < segment.next_offset:
            return segment.mark.next_offset
    return partition.end_offset


def open_log(url: str | None, path: str | None, *, committed_only: bool) -> Log:
    if url is not None:
        return ServerLog(url, committed_only=committed_only)
    assert path is not None
    return FolderLog(path, committed_only=committed_only)
