"""What a driver asks about a log before anything is read: a server answers, or a folder.

Knows: topics, ends, times, about how large records are. Refuses to know: what a query makes of it.
Invariant: `latest` is how far a reader of this isolation may go now, and never further: behind open transactions, and in a
folder with `flush = ack` only what is durable.
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
"""A file's time is as exact as the ticks of the kernel that keeps it."""
_LOOKS_MAX = 100
_SEGMENTS = (".log", ".swap")
_QUESTION_OFFSETS_MIN = 500_000
"""A server looks at some 60,000 batches for a question: where that is fewer offsets, batches are small, and reading them
costs less than asking on."""
_COUNTED_AT_ONCE = 100_000


Choose = Callable[[dict[str, int]], Iterable[Place]]
"""How many partitions each topic has → places."""


class Log(Protocol):
    identities: Identities
    """Of the topics that `topics` has seen, as they were at the last look."""

    def topics(self, named: Iterable[str] | None) -> dict[str, int]:
        """How many partitions each of these topics has (all topics if None); one that is not there is left out."""
        ...

    def look(self, named: Iterable[str] | None, choose: Choose, which: int) -> Offsets:
        """Where the places begin (EARLIEST) or end (LATEST) that are chosen of what `topics` tells now."""
        ...

    def earliest(self, places: Iterable[Place]) -> Offsets: ...

    def latest(self, places: Iterable[Place]) -> Offsets: ...

    def at_times(self, wanted: Mapping[Place, int]) -> dict[Place, int | None]:
        """Of each place the first offset at or after a time in ms."""
        ...

    def bytes_each(self, place: Place, start: int, end: int) -> float:
        """About how many bytes an offset takes in [start, end)."""
        ...

    def count(self, ranges: Sequence[Range]) -> int | None:
        """How many records a reader would be given of these, each of another place, told without reading them; None where they
        have to be read."""
        ...

    def wait_beyond(self, ends: Mapping[Place, int], wait_ms: int) -> None:
        """Return when there may be more, at the latest after this time."""
        ...

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None: ...

    def committed(self, group: str) -> Offsets: ...

    def close(self) -> None: ...


class ServerLog:
    """A server's or a cluster's."""

    def __init__(self, url: str, *, committed_only: bool) -> None:
        self._connection = Connection(url, committed_only=committed_only)
        self._reader = self._connection.reader
        self._told: dict[str, tuple[int, bytes]] = {}
        """Topics as they were at the last look: partitions and id."""
        self.identities: Identities = {}
        try:
            self._connection.reach()
        except ClientError:
            self._connection.close()
            raise

    def topics(self, named: Iterable[str] | None) -> dict[str, int]:
        wanted = None if named is None else list(named)
        if wanted == []:
            return {}
        return self._learn(wanted, self._connection.ask(lambda: self._reader.topics(wanted)))

    def _learn(self, asked: list[str] | None, told: dict[str, tuple[int, bytes]]) -> dict[str, int]:
        kept = {} if asked is None else {name: each for name, each in self._told.items() if name not in asked}
        self._told = kept | told
        self.identities |= {name: known for name, (_, topic_id) in told.items() if (known := identity(topic_id))}
        return _counts(told)

    def look(self, named: Iterable[str] | None, choose: Choose, which: int) -> Offsets:
        """Topics are mostly what they were: they are asked for, and at the same time for the offsets of what they were. An answer
        about offsets counts only if every topic has the id and the partitions that it had before: then it was about these."""
        wanted = None if named is None else list(named)
        known = {name: each for name, each in self._told.items() if wanted is None or name in wanted}
        places = dict.fromkeys(choose(_counts(known)), which)
        if not places:
            return self._ends(choose(self.topics(wanted)), which)
        told, found = self._connection.ask(lambda: self._reader.topics_and_offsets(wanted, places))
        counts = self._learn(wanted, told)
        if found is None or told != known:
            return self._ends(choose(counts), which)
        return {place: offset or 0 for place, offset in found.items()}

    def earliest(self, places: Iterable[Place]) -> Offsets:
        return self._ends(places, EARLIEST)

    def latest(self, places: Iterable[Place]) -> Offsets:
        return self._ends(places, LATEST)

    def _ends(self, places: Iterable[Place], which: int) -> Offsets:
        wanted = dict.fromkeys(places, which)
        found = self._connection.ask(lambda: self._reader.offsets(wanted)) if wanted else {}
        return {place: offset or 0 for place, offset in found.items()}

    def at_times(self, wanted: Mapping[Place, int]) -> dict[Place, int | None]:
        return self._connection.ask(lambda: self._reader.offsets(wanted)) if wanted else {}

    def bytes_each(self, place: Place, start: int, end: int) -> float:
        """A look at the batches where the range begins and at those in its middle."""
        sizes, rows = 0, 0
        for at in {start, (start + end) // 2}:
            try:
                found = self._connection.ask(
                    lambda at=at: self._reader.fetch(place, at, bytes_max=_SAMPLE_BYTES, wait_ms=0)  # type: ignore[misc]
                )
            except ClientError:
                continue  # a size is a hint: whoever reads the range will say what is wrong with it
            sizes += len(found.data)
            rows += max(found.next_offset - at, 0)
        return sizes / rows if rows else 0.0

    def count(self, ranges: Sequence[Range]) -> int | None:
        left = {each.place: (each.start, each.end) for each in ranges}
        records = 0
        while left:
            try:
                found = self._connection.ask(lambda left=left: self._reader.count(left))  # type: ignore[misc]
            except ClientError:
                return None  # an older server or another's; of a range that is gone whoever reads it is told
            records += sum(number for number, _ in found.values())
            began, left = left, {place: (at, left[place][1]) for place, (_, at) in found.items() if at < left[place][1]}
            if any(at == began[place][0] for place, (at, _) in left.items()):
                return None
            if left and sum(at - began[place][0] for place, (_, at) in found.items()) < _QUESTION_OFFSETS_MIN:
                return None
        return records

    def wait_beyond(self, ends: Mapping[Place, int], wait_ms: int) -> None:
        with contextlib.suppress(ClientError):  # whoever asks next is told what is wrong
            self._connection.run(self._reader.wait_beyond(ends, wait_ms))

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        self._connection.ask(lambda: self._reader.commit(group, offsets))

    def committed(self, group: str) -> Offsets:
        return self._connection.ask(lambda: self._connection.driver.group_offsets(group))

    def close(self) -> None:
        self._connection.close()


class FolderLog:
    """A data folder, looked at without its lock: nothing is written, and a server may be writing meanwhile."""

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
        """The partition as it is now: opened again only if a file of it has changed."""
        folder = self._folder.partition_folder(*place)
        signature = _signature(folder)
        kept = self._open.get(place)
        if kept is None or kept[0] != signature:
            kept = self._open[place] = signature, self._opened(place, folder)
        return kept[1]

    def _opened(self, place: Place, folder: str) -> PartitionLog:
        """Whoever writes there may exchange or remove segments while we read their heads: then what we saw never was."""
        for _ in range(_LOOKS_MAX):
            before = _segments(folder)
            try:
                found = self._folder.open_partition(*place)
            except StorageFault:
                if _segments(folder) == before:
                    raise
                continue
            if _segments(folder) == before:
                return found
        raise StorageFault(f"its files changed {_LOOKS_MAX} times while they were looked at", folder)

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

    def at_times(self, wanted: Mapping[Place, int]) -> dict[Place, int | None]:
        return {place: self._at_time(place, time_ms) for place, time_ms in wanted.items()}

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
        """A node may exchange a segment meanwhile: what cannot be counted is read, which looks again."""
        records = 0
        for each in ranges:
            at = each.start
            while at < each.end:
                try:
                    found = self.partition(each.place).count(
                        at, each.end, committed_only=self._committed_only, batches_max=_COUNTED_AT_ONCE
                    )
                except (StorageFault, BrokerError):
                    return None
                if found.next_offset == at:
                    return None
                records, at = records + found.records, found.next_offset
        return records

    def wait_beyond(self, ends: Mapping[Place, int], wait_ms: int) -> None:  # noqa: ARG002 - a port's signature
        """A folder tells nobody that it has changed: the caller looks again after the wait."""
        threading.Event().wait(wait_ms / 1000)

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:  # noqa: ARG002 - a port's signature
        raise AssertionError("the options have refused groupId with path")

    def committed(self, group: str) -> Offsets:  # noqa: ARG002 - a port's signature
        raise AssertionError("the options have refused groupId with path")

    def close(self) -> None:
        self._open.clear()


def _counts(told: Mapping[str, tuple[int, bytes]]) -> dict[str, int]:
    return {name: partitions for name, (partitions, _) in told.items()}


def _signature(folder: str) -> object:
    """Files, how large they are and when they were changed: records and the durable mark are written in place."""
    fresh_ns = SystemClock().now_ms() * 1_000_000 - _TICK_NS
    with contextlib.suppress(FileNotFoundError):
        found = sorted((each.name, (stat := each.stat()).st_size, stat.st_mtime_ns) for each in Path(folder).iterdir())
        if all(modified_ns < fresh_ns for _, _, modified_ns in found):
            return found
    return object()  # a file went while we looked, or the next change may have the same time


def _segments(folder: str) -> list[tuple[str, int]]:
    """The names of segments and of rewrites, and which file each is: a rewrite takes an old name."""
    found = []
    for each in Path(folder).iterdir():
        with contextlib.suppress(FileNotFoundError):
            if each.suffix in _SEGMENTS:
                found.append((each.name, each.stat().st_ino))
    return sorted(found)


def _durable_end(partition: PartitionLog) -> int:
    """What every mark says was synced: a read-only opening takes whatever is whole, durable or not."""
    for segment in partition.segments:
        if segment.mark.next_offset < segment.next_offset:
            return segment.mark.next_offset
    return partition.end_offset


def open_log(url: str | None, path: str | None, *, committed_only: bool) -> Log:
    if url is not None:
        return ServerLog(url, committed_only=committed_only)
    assert path is not None
    return FolderLog(path, committed_only=committed_only)
