"""Put a damaged data folder right, losing nothing that is whole.

Knows: which change follows from which finding, and in which order changes are safe. Refuses to know: how damage is found
(inspection), how files are exchanged (storage/rewrite), whether a person agrees (cli).
Invariants: the bytes that are taken out are durable in quarantine before anything changes; every whole batch stays; offsets that
are lost read as empty batches and are never given out again; a crash at any point is mended by running the repair again.

Order within a partition: what crashes left (unfinished rewrites, segments behind the end), quarantine, damaged segments from
the first to the last, missing segments, then what is derived from them: indexes go, snapshots and checkpoints are written
again. Opening the partition, which cuts torn tails and rebuilds indexes, comes last.
"""

from collections.abc import Callable, Iterator

import msgspec

from braidlog.codec.batch import empty_batch
from braidlog.model.clock import Clock
from braidlog.model.errors import StorageFault
from braidlog.storage.epochs import NO_EPOCH
from braidlog.storage.files import Disk, File, join
from braidlog.storage.folder import FOLDER_MAGIC, FORMAT, TOPIC_MAGIC, DataFolder, FolderIdentity
from braidlog.storage.partition import PartitionLog
from braidlog.storage.pool import FilePool
from braidlog.storage.recovery import STATE_MAGIC, SWAP, finish_swap
from braidlog.storage.rewrite import SegmentRewriter, swap_in
from braidlog.storage.segment import DATA_START, Segment, SegmentHead, index_name, log_name, state_name
from braidlog.storage.slots import SlotPair, pack_slot
from braidlog.storage.state import StateImage, encode_image
from braidlog.storage.walk import walk
from braidlog.tools.findings import Kind, VerifyReport
from braidlog.tools.inspect import InspectedSegment, Inspection, MissingSegment, Progress
from braidlog.tools.layout import Layout, TopicPlace
from braidlog.tools.quarantine import QuarantineReport, keep_bytes
from braidlog.tools.scan import Loss, Mend, Run
from braidlog.tools.verify import verify

_SPAN_MAX = 2**31 - 1


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a repair does. `file` is relative to the data folder."""

    action: str
    file: str
    detail: str
    topic: str | None = None
    partition: int | None = None
    offsets_lost: int = 0


class RepairPlan(msgspec.Struct, kw_only=True):
    """What a repair would do, in its order."""

    folder: str
    steps: list[Step]
    offsets_lost: int
    beyond_repair: list[str]
    """What a repair cannot put right, in sentences."""


class RepairReport(msgspec.Struct, kw_only=True):
    """What a repair did, and what a check said afterwards."""

    folder: str
    steps: list[Step]
    offsets_lost: int
    beyond_repair: list[str]
    quarantined: list[str]
    verified: VerifyReport


class Repair:
    """Survey first, change later: `plan` shows what `run` does. Only `run` needs the folder's lock."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        clock: Clock,
        topic: str | None = None,
        *,
        drop_unreadable: bool = False,
        progress: Progress | None = None,
        new_id: Callable[[], str],
    ) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._topic = topic
        self._new_id = new_id
        self._drop_unreadable = drop_unreadable
        self._progress = progress
        self._pool = FilePool(disk)
        self._layout = Layout(disk, path)
        self._inspections: list[tuple[TopicPlace, Inspection]] = []
        self._quarantined: list[str] = []

    def plan(self) -> RepairPlan:
        self._layout = Layout(self._disk, self._path)
        self._inspections = [
            (place, self._inspect(place, partition))
            for place in self._layout.choose(self._topic)
            for partition in range(place.meta.partitions)
        ]
        steps = list(self._steps_of_folder())
        hopeless = []
        for place, inspection in self._inspections:
            if inspection.is_hopeless:
                hopeless += [
                    f"{finding.file}: {finding.why}; {finding.meaning}"
                    for finding in inspection.findings
                    if finding.kind in (Kind.PARTITION, Kind.UNREADABLE)
                ]
            else:
                steps += _PartitionSteps(place, inspection, self._clock.now_ms()).all()
        hopeless += [
            f"{finding.file}: {finding.why}; {finding.meaning}"
            for finding in self._layout.findings
            if finding.kind is Kind.TOPIC and finding.topic is None
        ]
        if not self._drop_unreadable:
            hopeless += [
                f"{finding.file}: {finding.why}; {finding.meaning}"
                for _, inspection in self._inspections
                for finding in inspection.findings
                if finding.kind is Kind.RECORDS
            ]
        lost = sum(step.offsets_lost for step in steps)
        return RepairPlan(folder=self._path, steps=steps, offsets_lost=lost, beyond_repair=hopeless)

    def _inspect(self, place: TopicPlace, partition: int) -> Inspection:
        return self._layout.inspect(place, partition, progress=self._progress, drop_unreadable=self._drop_unreadable)

    def run(self) -> RepairReport:
        """Do it. The plan is made again under the lock: what a person agreed to may have been made without it."""
        lock = self._disk.lock(join(self._path, "LOCK"))
        try:
            plan = self.plan()
            self._mend_folder()
            for place in self._layout.choose(self._topic):
                self._mend_topic(place)
            for place, inspection in self._inspections:
                if inspection.findings and not inspection.is_hopeless:
                    repair = _PartitionRepair(self._disk, self._path, self._pool, self._clock, place, inspection)
                    repair.run(self._quarantined.append)
                    self._open(place, inspection)
        finally:
            lock.release()
        DataFolder(self._disk, self._path, self._clock, create=False).release()  # clears what is left beside topics
        return RepairReport(
            folder=self._path,
            steps=plan.steps,
            offsets_lost=plan.offsets_lost,
            beyond_repair=plan.beyond_repair,
            quarantined=self._quarantined,
            verified=verify(self._disk, self._path, self._topic),
        )

    # -- outside of partitions -------------------------------------------------------------------------------

    def _steps_of_folder(self) -> Iterator[Step]:
        layout = self._layout
        for name in layout.bad_folder_slots:
            detail = "give the folder a new identity" if layout.is_identity_lost else "copy it from the other one"
            yield Step(action="write", file=name, detail=detail)
        for place in layout.choose(self._topic):
            for name in place.bad_slots:
                detail = f"describe the topic anew, as {place.meta.name!r} with the default settings"
                yield Step(
                    action="write",
                    file=f"{place.label}/{name}",
                    detail=detail if place.is_lost else "copy it from the other one",
                    topic=place.meta.name,
                )
        for name in layout.leftovers:
            yield Step(action="remove", file=f"topics/{name}", detail="what an interrupted change left behind")

    def _mend_folder(self) -> None:
        if self._layout.bad_folder_slots:
            fresh = msgspec.json.encode(FolderIdentity(self._new_id(), FORMAT))
            _mend_slots(self._disk, self._path, "folder", FOLDER_MAGIC, fresh)

    def _mend_topic(self, place: TopicPlace) -> None:
        if place.bad_slots:
            meta = msgspec.structs.replace(place.meta, created_ms=place.meta.created_ms or self._clock.now_ms())
            folder = join(self._path, "topics", place.number)
            _mend_slots(self._disk, folder, "topic", TOPIC_MAGIC, msgspec.json.encode(meta))

    def _open(self, place: TopicPlace, inspection: Inspection) -> None:
        """Open the partition as its owner will: recovery does the rest, and must find nothing to complain of."""
        settings = place.meta.settings
        partition = PartitionLog(self._disk, inspection.folder, inspection.identity, settings, self._pool)
        if partition.damages:
            raise StorageFault(f"still damaged after a repair: {partition.damages[0]}", inspection.folder)
        partition.close()


def _mend_slots(disk: Disk, folder: str, stem: str, magic: bytes, fresh: bytes) -> None:
    """Write the slot that is bad or missing, or both. The newest value that holds is kept; `fresh` stands in for none."""
    pair = SlotPair(disk, folder, stem, magic)
    slots = pair.load()
    pair.save(slots[0].payload if slots else fresh, copies=1 if slots else 2)
    disk.sync_folder(folder)


class _PartitionSteps:
    """What would be done to one partition, in words."""

    def __init__(self, place: TopicPlace, inspection: Inspection, now_ms: int) -> None:
        self._label = f"{place.label}/{inspection.partition:04d}"
        self._inspection = inspection
        self._now_ms = now_ms

    def all(self) -> list[Step]:
        inspection = self._inspection
        steps = [self._step("remove", name, "what an interrupted change left behind") for name in inspection.leftovers]
        steps += [
            self._step("finish", f"{b:020d}{SWAP}", f"put it in the place of {log_name(b)}") for b in inspection.swaps
        ]
        steps += [
            self._step("quarantine", f"{b:020d}{SWAP}", "the whole file, then remove it") for b in inspection.bad_swaps
        ]
        steps += [
            self._step("remove", log_name(b), "it lies behind the end of the log") for b in reversed(inspection.behind)
        ]
        for segment in inspection.segments:
            steps += self._segment_steps(segment)
        for missing in inspection.missing:
            steps.append(
                self._step(
                    "create",
                    log_name(missing.base_offset),
                    f"empty batches in the place of {_span(missing.base_offset, missing.next_offset)}",
                    missing.next_offset - missing.base_offset,
                )
            )
        return steps + self._derived_steps()

    def _step(self, action: str, name: str, detail: str, offsets_lost: int = 0) -> Step:
        return Step(
            action=action,
            file=f"{self._label}/{name}",
            detail=detail,
            topic=self._inspection.topic,
            partition=self._inspection.partition,
            offsets_lost=offsets_lost,
        )

    def _segment_steps(self, segment: InspectedSegment) -> list[Step]:
        name = segment.file.name
        if not segment.must_rewrite:
            tail = segment.tail
            if tail is None:
                return []
            return [self._step("cut", name, f"bytes {tail.position} to {tail.end}: {tail.why}")]
        steps = [
            self._step("quarantine", name, f"bytes {report.position} to {report.end} as {stem}.bin")
            for stem, report in quarantined(self._inspection, segment, self._label, self._now_ms)
        ]
        lost = sum(loss.next_offset - loss.first_offset for loss in segment.scan.losses)
        kept = sum(piece.end - piece.position for piece in segment.scan.pieces if not isinstance(piece, Loss))
        parts = [f"keep {kept} bytes of whole batches"]
        parts += [f"put right one bit of the batch at {mend.position}" for mend in segment.scan.mends]
        parts += [
            f"empty batches in the place of {_span(loss.first_offset, loss.next_offset)}"
            for loss in segment.scan.losses
            if loss.next_offset > loss.first_offset
        ]
        if segment.file.head_fault is not None or segment.file.mark is None:
            parts.append("a new head")
        return [*steps, self._step("rewrite", name, "; ".join(parts), lost)]

    def _derived_steps(self) -> list[Step]:
        inspection = self._inspection
        rewritten = {index_name(segment.file.base_offset) for segment in inspection.segments if segment.must_rewrite}
        steps = []
        for finding in inspection.findings:
            name = finding.file.rsplit("/", 1)[-1]
            if finding.kind is Kind.INDEX and name not in rewritten:
                steps.append(self._step("rebuild", name, "from the batches"))
        for base, image in inspection.snapshots.items():
            action, detail = (
                ("remove", "it cannot be told any more") if image is None else ("write", "from the batches")
            )
            steps.append(self._step(action, state_name(base), detail))
        if inspection.rebuilt is not None:
            steps.append(self._step("write", "state.a and state.b", "the state folded from the batches"))
        else:
            steps += [
                self._step("write", finding.file.rsplit("/", 1)[-1], "from the other checkpoint")
                for finding in inspection.findings
                if finding.kind is Kind.CHECKPOINT
            ]
        return steps


class _PartitionRepair:
    """The changes to one partition's files."""

    def __init__(
        self, disk: Disk, data_folder: str, pool: FilePool, clock: Clock, place: TopicPlace, inspection: Inspection
    ) -> None:
        self._disk = disk
        self._data_folder = data_folder
        self._pool = pool
        self._now_ms = clock.now_ms()
        self._inspection = inspection
        self._folder = inspection.folder
        self._interval_bytes = place.meta.settings.index_interval_bytes
        self._label = f"{place.label}/{inspection.partition:04d}"
        self._boundaries = self._find_boundaries()
        self._latest_ms = -1

    def run(self, took_out: Callable[[str], object]) -> None:
        inspection = self._inspection
        for name in self._quarantine_all():
            took_out(name)
        self._clear_leftovers()
        for segment in inspection.segments:
            if segment.must_rewrite:
                self._rewrite(segment)
        for missing in inspection.missing:
            self._create(missing)
        for base in inspection.bad_indexes:
            self._remove(index_name(base))
        for base, image in inspection.snapshots.items():
            if image is None:
                self._remove(state_name(base))
            else:
                self._write_snapshot(base, image)
        self._disk.sync_folder(self._folder)
        if inspection.rebuilt is not None:
            self._save_checkpoint(inspection.rebuilt)

    # -- what is taken out -----------------------------------------------------------------------------------

    def _quarantine_all(self) -> Iterator[str]:
        for base in self._inspection.bad_swaps:
            name = f"{base:020d}{SWAP}"
            report = _report(
                self._inspection, self._label, name, (0, 2**62, base, base), "a rewrite that cannot be believed"
            )
            report.taken_out_ms = self._now_ms
            yield self._keep(name, _stem(self._inspection, base, 0), report)
        for segment in self._inspection.segments:
            if segment.must_rewrite:
                for stem, report in quarantined(self._inspection, segment, self._label, self._now_ms):
                    yield self._keep(segment.file.name, stem, report)

    def _keep(self, name: str, stem: str, report: QuarantineReport) -> str:
        source = self._disk.open(join(self._folder, name), writable=False)
        try:
            return keep_bytes(self._disk, self._data_folder, stem, source, report)
        finally:
            source.close()

    # -- what crashes left -----------------------------------------------------------------------------------

    def _clear_leftovers(self) -> None:
        inspection = self._inspection
        for name in inspection.leftovers:
            self._remove(name)
        for base in inspection.bad_swaps:
            self._remove(f"{base:020d}{SWAP}")
        for base in inspection.swaps:
            self._remove(index_name(base))
            finish_swap(self._disk, self._folder, base, inspection.swaps[base])
        for segment in inspection.segments:
            if segment.file.base_offset in inspection.swaps:
                segment.file.name = log_name(segment.file.base_offset)
        for base in reversed(inspection.behind):
            for name in (state_name(base), index_name(base), log_name(base)):
                self._remove(name)
        self._disk.sync_folder(self._folder)

    def _remove(self, name: str) -> None:
        path = join(self._folder, name)
        self._pool.drop(path)
        if self._disk.exists(path):
            self._disk.remove(path)

    # -- segments --------------------------------------------------------------------------------------------

    def _find_boundaries(self) -> list[int]:
        """Offsets at which an empty batch must end: where an epoch begins, and where a checkpoint ends.

        A batch across the end of a checkpoint would be passed over when the log is opened, and its end with it.
        """
        inspection = self._inspection
        starts = [start for _, start in inspection.epochs.entries()] if inspection.epochs else []
        return sorted({*starts, *inspection.checkpoint_ends, inspection.start_offset})

    def _rewrite(self, segment: InspectedSegment) -> None:
        file = segment.file
        head = file.head._replace(generation=file.head.generation + 1, created_ms=file.head.created_ms or self._now_ms)
        rewriter = self._begin(head)
        source = self._disk.open(join(self._folder, file.name), writable=False)
        try:
            for piece in segment.scan.pieces:
                self._carry_over(piece, source, rewriter)
        except BaseException:
            rewriter.abandon()
            raise
        finally:
            source.close()
        self._finish(rewriter)

    def _begin(self, head: SegmentHead) -> SegmentRewriter:
        return SegmentRewriter(self._disk, self._folder, head, self._pool, self._interval_bytes)

    def _finish(self, rewriter: SegmentRewriter) -> None:
        new: Segment = rewriter.write()
        rewriter.publish()
        swap_in(self._disk, self._folder, self._pool, [new], new)

    def _carry_over(self, piece: Run | Mend | Loss, source: File, rewriter: SegmentRewriter) -> None:
        match piece:
            case Run():
                for found in walk(source, piece.position, piece.end, piece.first_offset):
                    rewriter.keep(found.window[found.at : found.at + found.header.size_bytes])
                    self._latest_ms = max(self._latest_ms, found.header.max_timestamp)
            case Mend():
                rest = source.read_at(
                    piece.end - piece.position - len(piece.placed), piece.position + len(piece.placed)
                )
                rewriter.keep(piece.placed + rest)
            case Loss():
                self._fill(rewriter, piece.first_offset, piece.next_offset)

    def _fill(self, rewriter: SegmentRewriter, first: int, next_offset: int) -> None:
        """Empty batches over [first, next_offset), as few as the boundaries allow, as old as what stands before them."""
        while first < next_offset:
            end = min([next_offset, first + _SPAN_MAX, *(b for b in self._boundaries if b > first)])
            timestamp_ms = self._latest_ms if self._latest_ms >= 0 else self._now_ms
            rewriter.keep(empty_batch(first, end, self._epoch_at(first), timestamp_ms))
            first = end

    def _epoch_at(self, offset: int) -> int:
        epochs = self._inspection.epochs
        if epochs is None or not epochs.entries():
            return NO_EPOCH
        return epochs.at(offset)

    def _create(self, missing: MissingSegment) -> None:
        rewriter = self._begin(SegmentHead(self._inspection.identity, missing.base_offset, self._now_ms, 1))
        self._fill(rewriter, missing.base_offset, missing.next_offset)
        self._finish(rewriter)

    # -- what is derived from the batches --------------------------------------------------------------------

    def _write_snapshot(self, base: int, image: StateImage) -> None:
        name = state_name(base)
        self._remove(name)
        file = self._disk.create(join(self._folder, name))
        try:
            file.write_at(pack_slot(STATE_MAGIC, 0, encode_image(image)), 0)
            file.sync()
        finally:
            file.close()

    def _save_checkpoint(self, image: StateImage) -> None:
        pair = SlotPair(self._disk, self._folder, "state", STATE_MAGIC)
        pair.load()
        pair.save(encode_image(image), copies=2)
        self._disk.sync_folder(self._folder)


def quarantined(
    inspection: Inspection, segment: InspectedSegment, label: str, now_ms: int
) -> list[tuple[str, QuarantineReport]]:
    """(name without suffix, report) of each range of bytes that a rewrite of this segment takes out or changes."""
    file, taken = segment.file, []
    base = file.base_offset
    if file.head_fault is not None or file.mark is None:
        why = file.head_fault or "the durable mark's checksum does not hold"
        taken.append(_report(inspection, label, file.name, (0, min(DATA_START, file.size), base, base), why))
    for mend in segment.scan.mends:
        place = (mend.position, mend.end, mend.first_offset, mend.first_offset)
        taken.append(_report(inspection, label, file.name, place, mend.why))
    for loss in segment.scan.losses:
        if loss.position < file.size:
            place = (loss.position, min(loss.end, file.size), loss.first_offset, loss.next_offset)
            taken.append(_report(inspection, label, file.name, place, loss.why))
    for report in taken:
        report.taken_out_ms = now_ms
    return [(_stem(inspection, base, report.position), report) for report in taken]


def _report(
    inspection: Inspection, label: str, name: str, place: tuple[int, int, int, int], why: str
) -> QuarantineReport:
    return QuarantineReport(
        topic=inspection.topic,
        partition=inspection.partition,
        file=f"{label}/{name}",
        position=place[0],
        end=place[1],
        first_offset=place[2],
        next_offset=place[3],
        why=why,
        taken_out_ms=0,
    )


def _stem(inspection: Inspection, base: int, position: int) -> str:
    return f"{inspection.topic}-{inspection.partition}-{base}-{position}"


def _span(first: int, following: int) -> str:
    return f"offset {first}" if following - first == 1 else f"offsets {first} to {following - 1}"
