"""Everything about one partition: every byte read, every fault found, and what would have to be done about it.

Knows: what recovery says of the folder in a dry run, and how the files of a partition vouch for each other. Refuses to know: the
order and the safety of changes (repair does), what a crash can leave and where the log ends (recovery does).
Invariant: an inspection changes nothing; what recovery would put right is a note, everything else is not.

Who vouches for what: a mark for the bytes below it and for the next offset; a checkpoint for the offsets below it, for the epochs
and for the log's start; a segment's name for the offset at which the one before it ends.
"""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from braidlog.codec.batch import BatchHeader
from braidlog.codec.errors import ProtocolError
from braidlog.codec.records import check_batch_records
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.settings import TopicSettings
from braidlog.storage.damage import Change, ChangeKind
from braidlog.storage.epochs import EpochHistory
from braidlog.storage.files import Disk
from braidlog.storage.head import DATA_START, Mark, index_name, log_name, state_name
from braidlog.storage.index import NO_TIMESTAMP
from braidlog.storage.pool import FilePool
from braidlog.storage.recovery import BASE_DIGITS, SWAP, Recovered, Recovery, is_commit
from braidlog.storage.state import StateImage
from braidlog.storage.walk import Found, walk_past
from braidlog.tools.findings import Finding, Kind, Severity
from braidlog.tools.inspection import InspectedSegment, Inspection, MissingSegment
from braidlog.tools.partition_files import IndexFile, PartitionFiles, SegmentFile
from braidlog.tools.rebuild import StateRebuild
from braidlog.tools.scan import Loss, Rules, SegmentScan, SegmentScanner, learn_epochs

Progress = Callable[[int], None]

_NOTES = {
    ChangeKind.REMOVE_REWRITE: (Kind.LEFTOVER, "a rewrite was not finished", "opening removes it"),
    ChangeKind.FINISH_REWRITE: (Kind.LEFTOVER, "a rewrite was interrupted", "opening puts it in its place"),
    ChangeKind.REMOVE_CREATION: (Kind.TAIL, "its creation was never finished", "opening removes it"),
    ChangeKind.REMOVE_RETAINED: (Kind.LEFTOVER, "it lies below the log's start", "opening removes it"),
    ChangeKind.REMOVE_BEHIND: (Kind.TAIL, "it follows the end of the log", "opening removes it"),
}


class Span(NamedTuple):
    """Bytes of a file and the offsets they stand for; both half-open."""

    position: int = 0
    end: int = 0
    first_offset: int | None = None
    next_offset: int | None = None


class Inspector:
    """One inspection of one partition. `drop_unreadable`: batches whose records do not decode count as lost."""

    def __init__(
        self,
        disk: Disk,
        inspection: Inspection,
        settings: TopicSettings,
        *,
        progress: Progress | None = None,
        drop_unreadable: bool = False,
    ) -> None:
        self._files = PartitionFiles(disk, inspection.folder, inspection.identity)
        self._settings = settings
        self._inspection = inspection
        self._progress = progress or (lambda _: None)
        self._drop_unreadable = drop_unreadable
        self._rebuild = StateRebuild(0, None)
        self._compared = False

    def run(self) -> Inspection:
        files, inspection = self._files, self._inspection
        for name, why in files.refusals:
            inspection.is_hopeless = True
            self._find(Severity.DAMAGE, Kind.UNREADABLE, name, why, "use the version that wrote it; repair leaves it")
        if inspection.is_hopeless:
            return inspection
        for name in files.strangers:
            self._find(Severity.NOTE, Kind.STRANGER, name, "not a file of braidlog's", "it is left alone")
        if not files.segments and files.newest is None:
            inspection.is_hopeless = True
            meaning = (
                "nothing tells which offsets were given out: restore the partition from a copy, or delete the topic"
            )
            self._find(Severity.DAMAGE, Kind.PARTITION, "", "no segment and no checkpoint is left", meaning)
            return inspection
        opened = self._ask_recovery()
        ends = {segment.base_offset: segment.size for segment in opened.segments}
        segments = [file for file in files.segments if file.base_offset in ends]
        inspection.epochs = self._choose_epochs(segments)
        inspection.checkpoint_ends = sorted({image.end_offset for image in files.images} | set(files.snapshots))
        inspection.start_offset = self._choose_start(segments)
        self._walk(segments, opened.report.changes)
        self._find_checkpoint_faults()
        self._find_orphans()
        return inspection

    def _find(
        self, severity: Severity, kind: Kind, name: str, why: str, meaning: str, span: Span | None = None
    ) -> None:
        span = span or Span()
        self._inspection.findings.append(
            Finding(
                severity=severity,
                kind=kind,
                file=f"{self._inspection.label}/{name}" if name else self._inspection.label,
                why=why,
                meaning=meaning,
                topic=self._inspection.topic,
                partition=self._inspection.partition,
                position=span.position,
                end=span.end,
                first_offset=span.first_offset,
                next_offset=span.next_offset,
            )
        )

    # -- before the batches ----------------------------------------------------------------------------------

    def _ask_recovery(self) -> Recovered:
        """What opening the partition would do about it: whatever a crash left is a note."""
        inspection, disk = self._inspection, self._files.disk
        recovery = Recovery(
            disk, inspection.folder, inspection.identity, self._settings, FilePool(disk), read_only=True
        )
        opened = recovery.look()
        for change in opened.report.changes:
            base = int(change.file[:BASE_DIGITS]) if change.file[:BASE_DIGITS].isdigit() else 0
            match change.kind:
                case ChangeKind.REMOVE_REWRITE:
                    inspection.leftovers.append(change.file)
                case ChangeKind.FINISH_REWRITE:
                    inspection.swaps[base] = change.offset
                case ChangeKind.REMOVE_CREATION | ChangeKind.REMOVE_BEHIND:
                    inspection.behind.insert(0, base)
            if change.kind in _NOTES:
                kind, why, meaning = _NOTES[change.kind]
                span = Span(change.position, change.end)
                self._find(Severity.NOTE, kind, change.file, why, meaning, span)
        for damage in opened.report.damages:
            name = damage.file.rsplit("/", 1)[-1]
            if name.endswith(SWAP):
                inspection.bad_swaps.append(int(name[:BASE_DIGITS]))
                meaning = "the rewrite is lost; what it replaced is used"
                self._find(Severity.DAMAGE, Kind.LEFTOVER, name, damage.why, meaning)
        return opened

    def _choose_epochs(self, files: list[SegmentFile]) -> EpochHistory:
        newest = self._files.newest
        if newest is not None:
            return EpochHistory(newest.epochs)
        runs: list[tuple[int, int, int]] = []
        for file in files:
            for header in self._headers(file):
                if runs and runs[-1][0] == header.leader_epoch:
                    runs[-1] = (header.leader_epoch, runs[-1][1], runs[-1][2] + 1)
                else:
                    runs.append((header.leader_epoch, header.base_offset, 1))
        return learn_epochs(runs)

    def _headers(self, file: SegmentFile) -> list[BatchHeader]:
        """The headers of all whole batches, whatever lies between them: a first look, where no checkpoint is left."""
        with contextlib.closing(self._files.open(file.name)) as source:
            batches = walk_past(source, DATA_START, file.size, file.base_offset)
            return [found.header for found in batches if isinstance(found, Found)]

    def _choose_start(self, files: list[SegmentFile]) -> int:
        newest = self._files.newest
        if newest is not None:
            return newest.start_offset
        here = files[0].base_offset  # without a checkpoint, a missing first segment cannot be told from a retained one
        return max(here, *(image.start_offset for image in self._files.snapshots.values()), 0)

    # -- the segments ----------------------------------------------------------------------------------------

    def _walk(self, segments: list[SegmentFile], changes: list[Change]) -> None:
        inspection = self._inspection
        first = segments[0].base_offset if segments else inspection.start_offset
        if first > inspection.start_offset:
            self._miss(inspection.start_offset, first)
        self._rebuild = StateRebuild(first, self._files.snapshots.get(first))
        inspection.end_offset = first
        cuts = {change.file: change for change in changes if change.kind is ChangeKind.CUT}
        for number, file in enumerate(segments):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            self._walk_one(file, following, cuts.get(log_name(file.base_offset)), is_first=number == 0)
        if not any(change.kind in (ChangeKind.CUT, ChangeKind.REMOVE_BEHIND) for change in changes):
            self._close_end()
        inspection.end_offset = max(inspection.end_offset, inspection.start_offset)

    def _walk_one(self, file: SegmentFile, following: int | None, tail: Change | None, *, is_first: bool) -> None:
        if file.mark is not None and file.head.generation:
            self._rebuild.is_whole = False
        self._check_snapshot(file, is_first=is_first and not self._inspection.missing)
        self._find_head_faults(file)
        scan = self._scan(file, following, file.size if tail is None else tail.position)
        self._inspection.segments.append(InspectedSegment(file, scan, tail))
        self._inspection.end_offset = scan.next_offset
        if tail is not None:
            meaning = "opening cuts it off; nothing acknowledged is in it"
            span = Span(tail.position, tail.end, tail.offset)
            self._find(Severity.NOTE, Kind.TAIL, file.name, tail.why, meaning, span)
        elif following is not None and scan.next_offset < following:
            self._close_gap(file, scan, following)
        self._find_losses(file, scan)

    def _scan(self, file: SegmentFile, following: int | None, end: int) -> SegmentScan:
        base = file.base_offset
        if file.is_foreign:
            self._advance(file.size)
            return SegmentScan([Loss(DATA_START, file.size, base, base, "the file belongs elsewhere")], base)
        index = _IndexCheck(self._index_of(file, following), self._files.checkpoint_end, sealed=following is not None)
        rules = Rules(
            epochs=self._inspection.epochs,
            epochs_from=self._inspection.start_offset,
            following=following,
            is_readable=lambda found: self._judge(file, found),
        )
        source = self._files.open(file.name)
        before = self._inspection.bytes_read

        def visit(found: Found) -> None:
            index.see(found)
            self._take(found)

        try:
            scan = SegmentScanner(source, end, base, rules, visit).run()
        finally:
            source.close()
        self._advance(before + file.size - self._inspection.bytes_read)
        if scan.losses or scan.mends:
            self._rebuild.is_whole = False
        is_cut = file.mark is not None and file.size < file.mark.position  # told elsewhere
        fault = None if is_cut else index.finish(scan, file.size)
        if fault is not None:
            self._find_index_fault(file, fault, following)
        return scan

    def _advance(self, size: int) -> None:
        self._inspection.bytes_read += size
        self._progress(size)

    def _judge(self, file: SegmentFile, found: Found) -> str | None:
        """Why a whole batch must not be kept. One whose records do not decode is as it was written: its owner decides."""
        header = found.header
        try:
            is_commit(found.window, found.at, header)
        except ProtocolError as error:
            return f"the transaction marker does not decode: {error}"
        try:
            if header.record_count:
                check_batch_records(
                    found.window, found.at, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX, dense=False
                )
        except ProtocolError as error:
            if self._drop_unreadable:
                return f"its records do not decode: {error}"
            meaning = (
                "the checksum holds: it was written like this. Repair keeps it, or with --drop-unreadable takes it out"
            )
            end = found.position + header.size_bytes
            place = Span(found.position, end, header.base_offset, header.next_offset)
            self._find(Severity.FAULT, Kind.RECORDS, file.name, f"its records do not decode: {error}", meaning, place)
        return None

    def _take(self, found: Found) -> None:
        header = found.header
        self._inspection.batches += 1
        self._inspection.records += 0 if header.is_control else header.record_count
        self._advance(header.size_bytes)
        self._check_checkpoint()
        self._rebuild.apply(header, commit=is_commit(found.window, found.at, header))

    def _find_head_faults(self, file: SegmentFile) -> None:
        if file.is_foreign:
            meaning = "its records are another partition's; the ones that stood here are lost"
            self._find(Severity.DAMAGE, Kind.FOREIGN, file.name, file.head_fault or "", meaning, Span(0, file.size))
        elif file.head_fault is not None:
            meaning = "no record is lost by this alone; the partition takes no writes until it is repaired"
            self._find(Severity.DAMAGE, Kind.HEAD, file.name, file.head_fault, meaning, Span(0, DATA_START))
        elif file.mark is None:
            meaning = "no record is lost by this alone; the partition takes no writes until it is repaired"
            why = "the durable mark's checksum does not hold"
            self._find(Severity.DAMAGE, Kind.MARK, file.name, why, meaning, Span(64, 84))

    def _find_losses(self, file: SegmentFile, scan: SegmentScan) -> None:
        for mend in scan.mends:
            meaning = "one bit outside the checksum is wrong; repair puts it right and loses nothing"
            place = Span(mend.position, mend.end, mend.first_offset, mend.first_offset)
            self._find(Severity.DAMAGE, Kind.BATCH, file.name, mend.why, meaning, place)
        for loss in scan.losses:
            count = loss.next_offset - loss.first_offset
            meaning = "no offset is lost" if not count else _offsets(loss.first_offset, loss.next_offset) + " lost"
            kind = Kind.CUT if loss.position >= file.size else Kind.BATCH
            place = Span(loss.position, loss.end, loss.first_offset, loss.next_offset)
            self._find(Severity.DAMAGE, kind, file.name, loss.why, meaning, place)

    # -- gaps ------------------------------------------------------------------------------------------------

    def _close_gap(self, file: SegmentFile, scan: SegmentScan, following: int) -> None:
        """Offsets are missing between this segment and the next: they were in this one as far as its mark says."""
        whole = self._is_whole_by_mark(file, scan)
        mine = following if file.mark is None or file.is_foreign else min(file.mark.next_offset, following)
        if whole:
            mine = scan.next_offset
        if scan.next_offset < mine:
            end = max(file.size, file.mark.position if file.mark else 0)
            scan.lose(Loss(file.size, end, scan.next_offset, mine, "the file was cut"))
            self._rebuild.is_whole = False
        if scan.next_offset < following:
            self._miss(scan.next_offset, following)
        self._inspection.end_offset = following

    def _is_whole_by_mark(self, file: SegmentFile, scan: SegmentScan) -> bool:
        return file.mark is not None and file.mark == Mark(file.size, scan.next_offset)

    def _close_end(self) -> None:
        """The log ends before an offset that is known to have been durable."""
        furthest = max(self._files.furthest_offset(), self._inspection.start_offset)
        end = self._inspection.end_offset
        last = self._inspection.segments[-1] if self._inspection.segments else None
        if last is None:
            self._miss(self._inspection.start_offset, furthest)
        elif end < furthest and self._is_whole_by_mark(last.file, last.scan):
            self._miss(end, furthest)
        elif end < furthest:
            mark = last.file.mark
            size = last.file.size
            cut_to = max(size, mark.position if mark else 0)
            last.scan.lose(Loss(size, cut_to, end, furthest, "the file was cut"))
            self._inspection.findings = [f for f in self._inspection.findings if not self._is_loss_in(f, last.file)]
            self._find_losses(last.file, last.scan)
            self._rebuild.is_whole = False
        self._inspection.end_offset = max(end, furthest)

    def _is_loss_in(self, finding: Finding, file: SegmentFile) -> bool:
        return finding.kind in (Kind.BATCH, Kind.CUT) and finding.file.endswith("/" + file.name)

    def _miss(self, base: int, next_offset: int) -> None:
        if base in self._files.snapshot_faults:
            self._find_snapshot_fault(base, self._files.snapshot_faults[base], known=self._rebuild.is_begun)
        self._inspection.missing.append(MissingSegment(base, next_offset))
        self._rebuild.is_whole = False
        self._rebuild.compare(self._files.snapshots.get(base))
        meaning = f"{_offsets(base, next_offset)} lost" if next_offset > base else "no offset is lost"
        if self._files.newest is None:
            meaning += ", and perhaps later ones: without segment and checkpoint nothing tells where the log ended"
        place = Span(0, 0, base, next_offset)
        self._find(Severity.DAMAGE, Kind.MISSING, log_name(base), "the segment is missing", meaning, place)

    # -- what is derived from the batches --------------------------------------------------------------------

    def _index_of(self, file: SegmentFile, following: int | None) -> IndexFile | None:
        """The index to check, None if there is none that counts; faults of the file itself are reported here."""
        base = file.base_offset
        if not file.name.endswith(".log") or file.head_fault is not None:
            return None  # a rewrite brings its own, and without a head nothing tells which index is the right one
        if base not in self._files.indexes:
            why = "the index is missing"
            if following is None and not self._is_clean_stop():
                return None  # an active segment gets one with its first checkpoint
            if file.head.generation:
                self._find(Severity.NOTE, Kind.INDEX, index_name(base), why, "opening builds it again")
            else:
                self._find_index_fault(file, why, following)
            return None
        index = self._files.read_index(base, file.head.generation)
        if index.fault is None and index.seal is None and self._is_due(following):
            index.fault = "it is not sealed"
        if index.fault is not None:
            self._find_index_fault(file, index.fault, following)
            return None
        return index

    def _is_clean_stop(self) -> bool:
        return self._files.newest is not None and self._files.newest.clean_stop

    def _is_due(self, following: int | None) -> bool:
        """Whether the checkpoint came after the seal of this segment's index."""
        return following is not None and self._files.newest is not None and self._files.checkpoint_end >= following

    def _find_index_fault(self, file: SegmentFile, why: str, following: int | None) -> None:
        base = file.base_offset
        severity = Severity.FAULT if self._is_clean_stop() or self._is_due(following) else Severity.NOTE
        self._find(severity, Kind.INDEX, index_name(base), why, "no record is lost; it is built again from the batches")

    def _check_snapshot(self, file: SegmentFile, *, is_first: bool) -> None:
        base, files = file.base_offset, self._files
        why = files.snapshot_faults.get(base)
        if why is None and base in files.snapshots:
            why = self._rebuild.compare(files.snapshots[base])
        elif why is None and base and not is_first and not file.head.generation and file.head_fault is None:
            why = "the snapshot is missing"
        if why is not None:
            self._find_snapshot_fault(base, why, known=self._rebuild.is_begun or not is_first)

    def _find_snapshot_fault(self, base: int, why: str, *, known: bool) -> None:
        self._inspection.snapshots[base] = self._snapshot_image(base) if known else None
        meaning = "no record is lost; it serves only when both checkpoints are"
        self._find(Severity.FAULT, Kind.SNAPSHOT, state_name(base), why, meaning)

    def _snapshot_image(self, base: int) -> StateImage:
        image = self._rebuild.image()
        image.start_offset, image.end_offset = min(self._inspection.start_offset, base), base
        return image

    def _check_checkpoint(self) -> None:
        """Called at every batch boundary: compare the newest checkpoint with the rebuilt state when it is reached."""
        newest = self._files.newest
        if self._compared or newest is None or self._rebuild.state.end_offset < newest.end_offset:
            return
        self._compared = True
        if self._files.truncate_to is not None:
            return
        why = self._rebuild.contradiction(newest)
        if why is not None:
            meaning = "a retry may be taken for new, or a transaction be misread; no record is lost"
            self._find(Severity.FAULT, Kind.CHECKPOINT, "state", why, meaning)
            self._inspection.rebuilt = self._rebuild.image()

    def _find_checkpoint_faults(self) -> None:
        files = self._files
        self._check_checkpoint()
        for name, why in files.slot_faults.items():
            if files.images:
                meaning = (
                    "the other checkpoint is used and this one written again; a crash during a checkpoint looks alike"
                )
                self._find(Severity.FAULT, Kind.CHECKPOINT, name, why, meaning)
            else:
                meaning = (
                    "no checkpoint is left: producers, transactions and epochs are rebuilt from the batches, "
                    "and records deleted inside the first segment reappear"
                )
                self._find(Severity.DAMAGE, Kind.CHECKPOINT, name, why, meaning)
        if not files.images or self._inspection.rebuilt is not None:
            image = self._rebuild.image()
            image.start_offset = self._inspection.start_offset
            image.end_offset = max(image.end_offset, image.start_offset)
            known = files.images[:1] or list(files.snapshots.values())
            image.cleaned_offset = min((image.cleaned_offset for image in known), default=0)
            if self._inspection.epochs is not None:
                image.epochs = self._inspection.epochs.entries()
            self._inspection.rebuilt = image

    def _find_orphans(self) -> None:
        inspection = self._inspection
        kept = (
            {s.file.base_offset for s in inspection.segments}
            | set(inspection.behind)
            | {m.base_offset for m in inspection.missing}
        )
        kept |= {file.base_offset for file in self._files.segments}
        for name in self._files.orphans(kept):
            inspection.leftovers.append(name)
            self._find(Severity.NOTE, Kind.LEFTOVER, name, "it belongs to no segment", "repair removes it")


class _IndexCheck:
    """Holds the entries of an index against the batches as they pass by."""

    def __init__(self, index: IndexFile | None, checkpoint_end: int, *, sealed: bool) -> None:
        entries = [] if index is None else index.entries
        # Behind the checkpoint the index of an active segment may be older than the batches; nobody believes it there.
        self._entries = entries if sealed else [entry for entry in entries if entry.offset < checkpoint_end]
        self._seal = index.seal if index is not None and sealed else None
        self._next = 0
        self._latest_ms = NO_TIMESTAMP
        self._fault: str | None = None

    def see(self, found: Found) -> None:
        header = found.header
        while self._next < len(self._entries) and self._entries[self._next].position <= found.position:
            entry = self._entries[self._next]
            if entry != (header.base_offset, found.position, self._latest_ms):
                self._fault = self._fault or f"entry {self._next} does not describe the batch it points to"
            self._next += 1
        self._latest_ms = max(self._latest_ms, header.max_timestamp)

    def finish(self, scan: SegmentScan, size: int) -> str | None:
        """What is untrue of the index, if the batches are all there to tell."""
        if scan.losses or scan.mends:
            return None
        if self._fault is None and self._next < len(self._entries):
            self._fault = f"entry {self._next} points behind the last batch"
        if self._fault is None and self._seal is not None and self._seal != (scan.next_offset, size, self._latest_ms):
            self._fault = "its seal does not describe the end of the segment"
        return self._fault


def _offsets(first: int, following: int) -> str:
    return f"offset {first} is" if following - first == 1 else f"offsets {first} to {following - 1} are"
