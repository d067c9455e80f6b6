"""Inspect a partition: run recovery over every byte, and check indexes, snapshots and checkpoints against the batches.

An inspection changes nothing. What recovery would repair is a note; other findings are more severe.
"""

import re
from collections.abc import Callable
from contextlib import closing

import msgspec

from braidlog.codec.batch.records import check_batch_records
from braidlog.codec.errors import ProtocolError
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.settings import TopicSettings
from braidlog.storage.files import Disk, join
from braidlog.storage.open_files import FilePool
from braidlog.storage.recovery.damage import Change, ChangeKind, Damage, DamageKind
from braidlog.storage.recovery.recovery import Recovered, Recovery
from braidlog.storage.segment.batch_scan import ScannedBatch
from braidlog.storage.segment.segment import Segment
from braidlog.storage.segment.segment_files import (
    DAMAGED,
    LOG,
    NO_TIMESTAMP,
    STATE,
    Identity,
    SparseIndex,
    bases_of,
    index_name,
    log_name,
    state_name,
)
from braidlog.storage.state.leader_epoch_file import EpochStart
from braidlog.storage.state.partition_state import NOTHING_TO_CUT, EpochHistory, StateImage, UnknownImage, read_snapshot
from braidlog.storage.state.transaction_index import read_end
from braidlog.tools.findings import Finding, Kind, PartitionReport, Severity
from braidlog.tools.repair.rebuild import StateRebuild


class Inspection(msgspec.Struct, kw_only=True):
    """What was found, for a report and for a repair."""

    report: PartitionReport
    folder: str
    label: str
    """The folder's name inside of the data folder."""
    identity: Identity
    begun: EpochStart | None = None
    """Epochs that its checkpoints do not know of yet."""
    opened: Recovered | None = None
    """What recovery says of it. None: nothing is left to repair from, or another version's data must not be touched."""
    snapshots: dict[int, StateImage | None] = {}
    """Snapshots to write again; None: to remove, because their content is unknown."""
    boundaries: set[int] = set()
    """Offsets where a checkpoint or a snapshot was taken."""
    rebuilt: StateImage | None = None
    """The state to write down in the place of a checkpoint that is not the log's."""


Progress = Callable[[int], None]

_OURS = re.compile(r"\d{20}(\.log|\.idx|\.state|\.cleaned|\.swap)|state\.[ab]")
_REFUSED = "use the version of braidlog that wrote it; repair does not change it"
_NOTES = {
    ChangeKind.REMOVE_REWRITE: (Kind.LEFTOVER, "incomplete rewrite", "opening removes it"),
    ChangeKind.FINISH_REWRITE: (Kind.LEFTOVER, "interrupted rewrite", "opening completes it"),
    ChangeKind.REMOVE_CREATION: (Kind.TAIL, "incomplete creation", "opening removes it"),
    ChangeKind.REMOVE_RETAINED: (Kind.LEFTOVER, "it lies below the log's start", "opening removes it"),
    ChangeKind.REMOVE_BEHIND: (Kind.TAIL, "it follows the end of the log", "opening removes it"),
    ChangeKind.REMOVE_STRAY: (Kind.LEFTOVER, "it belongs to no segment", "opening removes it"),
    ChangeKind.CUT: (Kind.TAIL, "", "opening truncates it; it contains no acknowledged record"),
}
_NO_WRITES = "no record is lost by this alone; the partition refuses writes until it is repaired"
_DAMAGES = {
    DamageKind.BATCH: (Kind.BATCH, ""),
    DamageKind.CUT: (Kind.CUT, ""),
    DamageKind.MISSING: (Kind.MISSING, ""),
    DamageKind.HEAD: (Kind.HEAD, _NO_WRITES),
    DamageKind.MARK: (Kind.MARK, _NO_WRITES),
    DamageKind.FOREIGN: (Kind.FOREIGN, "its records belong to another partition; the original records are lost"),
    DamageKind.VERSION: (Kind.UNREADABLE, _REFUSED),
    DamageKind.REWRITE: (Kind.LEFTOVER, "the rewrite is lost; the original segment is used"),
}
_NOTHING_LEFT = "the used offsets are unknown: restore the partition from a backup, or delete the topic"


class Inspector:
    """Inspects a partition. `drop_unreadable`: batches whose records do not decode count as lost."""

    def __init__(
        self,
        disk: Disk,
        inspection: Inspection,
        settings: TopicSettings,
        *,
        progress: Progress | None = None,
        drop_unreadable: bool = False,
    ) -> None:
        self._disk = disk
        self._folder = inspection.folder
        self._inspection = inspection
        self._report = inspection.report
        self._progress = progress or (lambda _: None)
        self._drop_unreadable = drop_unreadable
        self._recovery = Recovery(
            disk,
            inspection.folder,
            inspection.identity,
            settings,
            FilePool(disk),
            read_only=True,
            auditor=self,
            begun=inspection.begun,
        )
        self._rebuild: StateRebuild | None = None
        self._indexes: list[_IndexCheck] = []
        self._compared = False

    def run(self) -> Inspection:
        if not self._disk.is_folder(self._folder):
            why = "the partition's folder is missing"
            self._find(Severity.DAMAGE, Kind.PARTITION, "", why, _NOTHING_LEFT)
            return self._inspection
        try:
            opened = self._recovery.inspect()
        except UnknownImage as unknown:
            self._find(Severity.DAMAGE, Kind.UNREADABLE, "", str(unknown), _REFUSED)
            return self._inspection
        refused = [damage for damage in opened.report.damages if damage.kind is DamageKind.VERSION]
        for damage in refused:
            self._find_damage(damage)
        if not refused and not opened.segments and not self._recovery.images:
            self._find(Severity.DAMAGE, Kind.PARTITION, "", "all segments and checkpoints are missing", _NOTHING_LEFT)
        elif not refused:
            self._inspection.opened = opened
            self._judge(opened)
        return self._inspection

    def _judge(self, opened: Recovered) -> None:
        """Add the findings of recovery, and of the files beside the segments."""
        report, state = self._report, opened.state
        report.start_offset, report.end_offset, report.segments = (
            state.start_offset,
            state.end_offset,
            len(opened.segments),
        )
        names = [name for name in self._disk.names(self._folder) if not self._disk.is_folder(join(self._folder, name))]
        for name in names:
            if not _OURS.fullmatch(name):
                is_aside = name.endswith(DAMAGED)
                why = (
                    "quarantined: a damaged replica, replaced by another node's"
                    if is_aside
                    else "not a file of braidlog's"
                )
                self._find(Severity.NOTE, Kind.STRANGER, name, why, "it is left alone")
        for change in opened.report.changes:
            self._find_change(change)
        for damage in sorted(opened.report.damages, key=lambda damage: (damage.file, damage.position)):
            self._find_damage(damage)
        for check in self._indexes:
            self._find_index_fault(check, opened)
        self._place_snapshots(opened)
        self._find_checkpoint_faults(opened)
        self._inspection.boundaries = {image.end_offset for image in self._recovery.images} | {*bases_of(names, STATE)}
        self._advance(segment_bytes(self._disk, self._folder) - report.bytes_read)

    def _find(
        self,
        severity: Severity,
        kind: Kind,
        name: str,
        why: str,
        meaning: str,
        place: tuple[int, int] = (0, 0),
        offsets: tuple[int | None, int | None] = (None, None),
    ) -> None:
        self._report.findings.append(
            Finding(
                severity=severity,
                kind=kind,
                file=f"{self._inspection.label}/{name}" if name else self._inspection.label,
                why=why,
                meaning=meaning,
                topic=self._report.topic,
                partition=self._report.partition,
                position=place[0],
                end=place[1],
                first_offset=offsets[0],
                next_offset=offsets[1],
            )
        )

    def _find_change(self, change: Change) -> None:
        if change.kind is not ChangeKind.DERIVED:  # derived files are checked against the batches here
            kind, why, meaning = _NOTES[change.kind]
            offsets = (change.offset, None) if change.kind is ChangeKind.CUT else (None, None)
            place = (change.position, change.end)
            self._find(Severity.NOTE, kind, change.file, why or change.why, meaning, place, offsets)

    def _find_damage(self, damage: Damage) -> None:
        kind, meaning = _DAMAGES[damage.kind]
        first, following = damage.first_offset, damage.next_offset
        if damage.mended:
            meaning = "one bit outside the checksum is wrong; repair corrects it without loss"
        elif not meaning:
            meaning = f"{_offsets(first, following)} lost" if following > first else "no offset is lost"
        if damage.kind is DamageKind.MISSING and not self._recovery.images:
            meaning += ", and perhaps later ones: without segment and checkpoint the log end offset is unknown"
        place, name = (damage.position, damage.end), damage.file.rsplit("/", 1)[-1]
        self._find(Severity.DAMAGE, kind, name, damage.why, meaning, place, (first, following))

    # -- the batches, as recovery meets them -------------------------------------------------------------------

    def begin(self, segment: Segment) -> None:
        base = segment.base_offset
        is_first = self._rebuild is None
        if self._rebuild is None:
            self._rebuild = StateRebuild(base, self._read_snapshot(base))
            start = self._recovery.images[0].start_offset if self._recovery.images else base
            is_first = start >= base
        elif base != self._rebuild.state.end_offset or segment.head.generation:
            self._rebuild.is_whole = False
        is_new = not segment.head.generation and not self._is_damaged(segment)
        self._check_snapshot(self._rebuild, base, is_first=is_first, must_be=bool(base) and is_new and not is_first)
        if segment.head.generation:
            self._rebuild.is_whole = False
        if self._indexes:
            self._indexes[-1].following = base
        self._indexes.append(_IndexCheck(self._disk, segment))

    def _is_damaged(self, segment: Segment) -> bool:
        return any(damage.file == segment.path for damage in self._recovery.report.damages)

    def take(self, segment: Segment, found: ScannedBatch) -> str | None:
        """Check a batch; a valid batch whose records do not decode is left to the operator's decision."""
        rebuild, header = self._rebuild, found.header
        assert rebuild is not None
        self._indexes[-1].see(found)
        self._advance(header.size_bytes)
        try:
            if header.record_count:
                check_batch_records(
                    found.window, found.at, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX, dense=False
                )
        except ProtocolError as error:
            why = f"records do not decode: {error}"
            if self._drop_unreadable:
                rebuild.is_whole = False
                return why
            meaning = (
                "the checksum is valid: it was written like this. Repair keeps it, or removes it with --drop-unreadable"
            )
            place, offsets = (
                (found.position, found.position + header.size_bytes),
                (header.base_offset, header.next_offset),
            )
            name = segment.path.rsplit("/", 1)[-1]
            self._find(Severity.FAULT, Kind.RECORDS, name, why, meaning, place, offsets)
        self._report.batches += 1
        self._report.records += 0 if header.is_control else header.record_count
        if header.base_offset != rebuild.state.end_offset:
            rebuild.is_whole = False
        self._check_checkpoint()
        rebuild.apply(header, end=read_end(found.window, found.at, header))
        return None

    def _advance(self, size: int) -> None:
        self._report.bytes_read += size
        self._progress(size)

    # -- what is derived from the batches --------------------------------------------------------------------

    def _read_snapshot(self, base: int) -> StateImage | None:
        try:
            return read_snapshot(self._disk, self._folder, base)
        except ValueError:
            return None

    def _check_snapshot(self, rebuild: StateRebuild, base: int, *, is_first: bool, must_be: bool) -> None:
        """Compare a snapshot with the rebuilt state, or take from it what the log no longer contains."""
        try:
            snapshot = read_snapshot(self._disk, self._folder, base)
            why = "the snapshot is missing" if snapshot is None and must_be else rebuild.compare(snapshot)
        except ValueError as error:
            why = str(error)
        if why is not None:
            image = rebuild.image()
            image.end_offset = base
            self._find_snapshot_fault(base, why, image if rebuild.is_created or not is_first else None)

    def _find_snapshot_fault(self, base: int, why: str, image: StateImage | None) -> None:
        self._inspection.snapshots[base] = image
        meaning = "no record is lost; it is used only if both checkpoints are lost"
        self._find(Severity.FAULT, Kind.SNAPSHOT, state_name(base), why, meaning)

    def _place_snapshots(self, opened: Recovered) -> None:
        """Add the snapshots to rewrite. Next to a missing segment a broken snapshot cannot be rebuilt. Recovery provides start
        offset and epochs, since the first batch of an epoch may be lost."""
        for damage in opened.report.damages:
            if damage.kind is DamageKind.MISSING:
                try:
                    read_snapshot(self._disk, self._folder, damage.first_offset)
                except ValueError as error:
                    self._find_snapshot_fault(damage.first_offset, str(error), None)
        for base, image in self._inspection.snapshots.items():
            if image is not None:
                history = EpochHistory(opened.state.epochs.entries())
                history.cut_end(base)
                image.start_offset, image.epochs = min(opened.state.start_offset, base), history.entries()

    def _check_checkpoint(self) -> None:
        """Called at every batch boundary: compare the newest checkpoint with the rebuilt state when it is reached."""
        newest, rebuild = next(iter(self._recovery.images), None), self._rebuild
        if self._compared or newest is None or rebuild is None or rebuild.state.end_offset < newest.end_offset:
            return
        self._compared = True
        why = rebuild.contradiction(newest) if not newest.is_intent else None
        if why is not None:
            meaning = "a retry may be stored twice, or a transaction be misread; no record is lost"
            self._find(Severity.FAULT, Kind.CHECKPOINT, "state", why, meaning)
            self._inspection.rebuilt = rebuild.image()
            self._inspection.rebuilt.start_offset = newest.start_offset
            self._inspection.rebuilt.cleaned_offset = newest.cleaned_offset
            self._inspection.rebuilt.epochs = newest.epochs

    def _find_checkpoint_faults(self, opened: Recovered) -> None:
        self._check_checkpoint()
        for name, why in opened.slots.all_faults().items():
            severity = Severity.FAULT if self._recovery.images else Severity.DAMAGE
            meaning = (
                "the other checkpoint is used, and this one rewritten; a crash during a checkpoint has the same effect"
            )
            if not self._recovery.images:
                meaning = (
                    "both checkpoints are lost: producers, transactions and epochs are rebuilt from the batches, "
                    "and records deleted inside the first segment reappear"
                )
            self._find(severity, Kind.CHECKPOINT, name, why, meaning)

    def _find_index_fault(self, check: "_IndexCheck", opened: Recovered) -> None:
        """Report a wrong index: a fault if it was written before the last checkpoint, else a note."""
        segment, following = check.segment, check.following
        newest = next(iter(self._recovery.images), None)
        checkpoint_end = 0 if newest is None else newest.end_offset
        if newest is not None and newest.truncate_to != NOTHING_TO_CUT:
            checkpoint_end = newest.truncate_to
        is_due = following is not None and newest is not None and checkpoint_end >= following
        is_clean = opened.report.clean_stop
        if self._is_damaged(segment) or not segment.path.endswith(".log"):
            return  # a rewrite has its own index, and without all batches the index cannot be checked
        is_missing = not self._disk.exists(segment.index_path)
        if is_missing and following is None and not is_clean:
            return  # an active segment gets one with its first checkpoint
        why = check.finish(checkpoint_end, is_due=is_due)
        if why is not None:
            # A rewrite gets its index later, and a backup has no index of an active segment.
            is_left_out = is_missing and (segment.head.generation > 0 or following is None)
            severity = Severity.FAULT if (is_clean or is_due) and not is_left_out else Severity.NOTE
            meaning = "no record is lost; it is rebuilt from the batches"
            self._find(severity, Kind.INDEX, index_name(segment.base_offset), why, meaning)


class _IndexCheck:
    """Checks the entries of an index against the batches."""

    def __init__(self, disk: Disk, segment: Segment) -> None:
        self.segment = segment
        self.following: int | None = None
        """Base offset of the next segment, if this one is sealed."""
        self.index, self._load_fault = load_index(disk, segment)
        self._next = 0
        self._latest_ms = NO_TIMESTAMP
        self._wrong: tuple[int, str] | None = None
        """Offset of the first wrong entry, and the reason."""

    def see(self, found: ScannedBatch) -> None:
        index, header = self.index, found.header
        while self._next < len(index) and index.entry(self._next).position <= found.position:
            entry = index.entry(self._next)
            if self._wrong is None and entry != (header.base_offset, found.position, self._latest_ms):
                self._wrong = (entry.offset, f"entry {self._next} does not describe the batch it points to")
            self._next += 1
        self._latest_ms = max(self._latest_ms, header.max_timestamp)

    def finish(self, checkpoint_end: int, *, is_due: bool) -> str | None:
        """Return what is wrong with the index after all batches. Behind the checkpoint the index of an active segment may be
        older than the batches, and is not used. `is_due`: the segment was sealed before the checkpoint."""
        index, is_sealed = self.index, self.following is not None
        if self._wrong is None and self._next < len(index):
            self._wrong = (index.entry(self._next).offset, f"entry {self._next} points beyond the last batch")
        if self._load_fault is not None:
            return self._load_fault
        if index.end is None and is_due:
            return "it is not sealed"
        if self._wrong is not None and (is_sealed or self._wrong[0] < checkpoint_end):
            return self._wrong[1]
        end = (self.segment.next_offset, self.segment.size, self._latest_ms)
        return (
            "its seal does not describe the end of the segment" if is_sealed and index.end not in (None, end) else None
        )


def segment_bytes(disk: Disk, folder: str) -> int:
    """Return the total size of all segments in a partition's folder."""
    total = 0
    for base in bases_of(disk.names(folder), LOG):
        with closing(disk.open(join(folder, log_name(base)), writable=False)) as file:
            total += file.size()
    return total


def load_index(disk: Disk, segment: Segment) -> tuple[SparseIndex, str | None]:
    """Return the valid part of a segment's index, and why the rest is invalid."""
    index = SparseIndex(segment.base_offset, segment.head.generation, 1)
    if not disk.exists(segment.index_path):
        return index, "the index is missing"
    with closing(disk.open(segment.index_path, writable=False)) as file:
        return index, index.load(file)


def _offsets(first: int, following: int) -> str:
    return f"offset {first} is" if following - first == 1 else f"offsets {first} to {following - 1} are"
