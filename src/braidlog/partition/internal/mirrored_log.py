"""Keep two copies of an internal log: the log itself, and the folder `copy` beside it, with the same batches.

Invariants: nothing that one copy has intact is lost. A damaged copy is replaced by the other; the shorter copy is
extended to the longer. If both are damaged, neither changes. A copy is built under another name: a crash leaves the
old one, the new one or none, never a part of one.
"""

from typing import Final

import msgspec

from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.settings import Flush
from braidlog.storage.files import join, parent, read_whole, write_whole
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.segment.segment_files import Identity

COPY: Final = "copy"
FLUSH_INTERVAL_MS: Final = 1000
"""The copy protects against bit rot, which takes longer; after a power failure only the log itself is current."""
READ_BYTES: Final = 1024 * 1024
_NEW = ".new"
_GONE = ".gone"


class MirroredLog:
    """The two copies of an internal topic's log, opened."""

    def __init__(self, folder: DataFolder, topic: str) -> None:
        self._folder = folder
        self._disk = folder.disk
        self._topic = topic
        self.place = folder.partition_folder(topic, 0)
        self.copy_place = join(parent(self.place), COPY)
        self.log, self.copy = self._open()
        """The copy is None if the disk has no space for one."""

    def _open(self) -> tuple[PartitionLog, PartitionLog | None]:
        log = self._open_log()
        copy = self._open_copy()
        why = _why_not(log)
        if why:
            if not isinstance(copy, PartitionLog) or _why_not(copy) or not _covers(copy, log):
                raise log if isinstance(log, StorageFault) else StorageFault(_damaged(self._topic, why))
            if isinstance(log, PartitionLog):
                _carry_over(log, copy)
                log.close()
            return self._made_again(self.place, self.copy_place, copy, why)
        assert isinstance(log, PartitionLog)
        if isinstance(copy, PartitionLog) and not (why := _why_not(copy)):
            try:
                _carry_over(copy, log)
                _carry_over(log, copy)
            except (BrokerError, StorageFault) as error:
                why = str(error)
            else:
                copy.advance_start(log.start_offset)
                return log, copy
        if isinstance(copy, PartitionLog):
            copy.close()
        try:
            return self._made_again(self.copy_place, self.place, log, why or str(copy))
        except StorageFault as fault:
            self._folder.notes.append(f"internal topic {self._topic!r} has no copy: {fault}")
            again = self._open_log()
            if isinstance(again, StorageFault):
                raise again from fault
            return again, None

    def _open_log(self) -> PartitionLog | StorageFault:
        try:
            return _checked(self._folder.open_partition(self._topic, 0))
        except StorageFault as fault:
            return fault

    def _open_copy(self) -> PartitionLog | StorageFault:
        if not self._disk.exists(self.copy_place):
            return StorageFault("")
        meta = self._folder.topic(self._topic)
        settings = msgspec.structs.replace(meta.settings, flush=Flush.INTERVAL, flush_interval_ms=FLUSH_INTERVAL_MS)
        identity = Identity(bytes.fromhex(meta.topic_id), 0)
        try:
            return _checked(PartitionLog(self._disk, self.copy_place, identity, settings, self._folder.pool))
        except StorageFault as fault:
            return fault

    def _made_again(self, place: str, source: str, whole: PartitionLog, why: str) -> tuple[PartitionLog, PartitionLog]:
        """Replace the files in `place` by copies of those in `source`, the folder of the open log `whole`.

        Open both logs again.
        """
        whole.close()
        for leftover in (place + _NEW, place + _GONE):
            if self._disk.exists(leftover):
                self._remove(leftover)
        self._disk.make_folder(place + _NEW)
        for name in self._disk.names(source):
            write_whole(self._disk, join(place + _NEW, name), read_whole(self._disk, join(source, name)))
        self._disk.sync_folder(place + _NEW)
        there = self._disk.exists(place)
        if there:
            self._disk.rename(place, place + _GONE)
        self._disk.rename(place + _NEW, place)
        self._disk.sync_folder(parent(place))
        if there:
            self._remove(place + _GONE)
        if why:
            which = "log" if place == self.place else "copy of the log"
            self._folder.notes.append(
                f"internal topic {self._topic!r}: its {which} was made again from the other: {why}"
            )
        log, copy = self._open_log(), self._open_copy()
        for each in (log, copy):
            if isinstance(each, StorageFault) or _why_not(each):
                raise StorageFault(_damaged(self._topic, _why_not(each)))
        assert isinstance(log, PartitionLog)
        assert isinstance(copy, PartitionLog)
        return log, copy

    def _remove(self, place: str) -> None:
        for name in self._disk.names(place):
            self._disk.remove(join(place, name))
        self._disk.remove_folder(place)


def _checked(log: PartitionLog) -> PartitionLog:
    """Verify every batch: an opening trusts the seals of segments, but this log must be known to be intact."""
    for segment in log.segments:
        try:
            for _ in log.batches_of(segment):
                pass
        except StorageFault:
            break  # recorded in `damages`
    return log


def _why_not(log: PartitionLog | StorageFault) -> str:
    """Return the damage of a log; empty if it is intact."""
    if isinstance(log, StorageFault):
        return str(log) or "it did not exist"
    return str(log.damages[0]) if log.damages else ""


def _damaged(topic: str, why: str) -> str:
    return f"internal topic {topic!r} is damaged, and so is its copy: {why}; see `braid log repair`"


def _covers(copy: PartitionLog, log: PartitionLog | StorageFault) -> bool:
    """Return whether an intact copy has everything that a damaged log has lost."""
    if isinstance(log, StorageFault):
        return copy.report.clean_stop  # otherwise it is unknown how much longer the log was
    return all(damage.next_offset <= copy.end_offset for damage in log.damages)


def _carry_over(source: PartitionLog, target: PartitionLog) -> None:
    """Append what `source` has beyond the end of `target`, durably."""
    while target.end_offset < source.end_offset:
        target.append_replicated(source.read(target.end_offset, READ_BYTES), now_ms=0)
    target.sync()
