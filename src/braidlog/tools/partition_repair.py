"""The steps that put one partition right: what is said of each, and what is done.

Knows: which change follows from which finding, and in which order changes are safe. Refuses to know: how damage is found
(inspect), how files are exchanged (storage/rewrite).
Invariants: the bytes that are taken out are durable in quarantine before anything changes; every whole batch stays; offsets that
are lost read as empty batches and are never given out again; a crash at any point is mended by running the repair again.

Order: quarantine, what crashes left (unfinished rewrites, segments behind the end), damaged segments from the first to the last,
missing segments, then what is derived from them: indexes go, snapshots and checkpoints are written again. Opening the partition,
which cuts torn tails and rebuilds indexes, comes last.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from braidlog.codec.batch import empty_batch
from braidlog.model.settings import TopicSettings
from braidlog.storage.epochs import NO_EPOCH
from braidlog.storage.files import Disk, File, join, write_whole
from braidlog.storage.head import DATA_START, SegmentHead, index_name, log_name, state_name
from braidlog.storage.pool import FilePool
from braidlog.storage.recovery import STATE_MAGIC, finish_swap, swap_name
from braidlog.storage.rewrite import SegmentRewriter, swap_in
from braidlog.storage.slots import SlotPair, pack_slot
from braidlog.storage.state import StateImage, encode_image
from braidlog.storage.walk import walk
from braidlog.tools.findings import Kind
from braidlog.tools.inspection import InspectedSegment, Inspection, MissingSegment
from braidlog.tools.quarantine import QuarantineReport, keep_bytes
from braidlog.tools.scan import Loss, Mend, Run

_SPAN_MAX = 2**31 - 1


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a repair does. `file` is relative to the data folder."""

    action: str
    file: str
    detail: str
    topic: str | None = None
    partition: int | None = None
    offsets_lost: int = 0


class Task(NamedTuple):
    """A step and what does it. `take_out`, which copies bytes to quarantine, comes before any `do` of the partition."""

    step: Step
    do: Callable[[], object]
    take_out: Callable[[], object] | None = None


class PartitionRepair:
    """The repair of one partition: what `tasks` shows is what `run` does."""

    def __init__(
        self, disk: Disk, data_folder: str, pool: FilePool, settings: TopicSettings, inspection: Inspection, now_ms: int
    ) -> None:
        self._disk = disk
        self._data_folder = data_folder
        self._pool = pool
        self._interval_bytes = settings.index_interval_bytes
        self._inspection = inspection
        self._folder = inspection.folder
        self._now_ms = now_ms
        self._boundaries = self._find_boundaries()
        self._latest_ms = -1
        self.quarantined: list[str] = []

    def run(self) -> None:
        tasks = list(self.tasks())
        for task in tasks:
            if task.take_out is not None:
                task.take_out()
        for task in tasks:
            task.do()

    def tasks(self) -> Iterator[Task]:
        found = self._inspection
        for name in found.leftovers:
            yield self._task("remove", name, "what an interrupted change left behind", partial(self._remove, name))
        for base, following in found.swaps.items():
            detail = f"put it in the place of {log_name(base)}"
            yield self._task("finish", swap_name(base), detail, partial(self._finish_swap, base, following))
        for base in found.bad_swaps:
            name = swap_name(base)
            report = self._report(name, Loss(0, 2**62, base, base, "a rewrite that cannot be believed"))
            task = self._task("quarantine", name, "the whole file, then remove it", partial(self._remove, name))
            yield task._replace(take_out=partial(self._keep, name, self._stem(base, 0), report))
        for base in reversed(found.behind):
            detail = "it lies behind the end of the log"
            yield self._task("remove", log_name(base), detail, partial(self._remove_segment, base))
        for segment in found.segments:
            yield from self._segment_tasks(segment)
        for missing in found.missing:
            first, following = missing.base_offset, missing.next_offset
            detail = f"empty batches in the place of {_span(first, following)}"
            yield self._task("create", log_name(first), detail, partial(self._create, missing), following - first)
        yield from self._derived_tasks()

    def _task(self, action: str, name: str, detail: str, do: Callable[[], object], offsets_lost: int = 0) -> Task:
        found = self._inspection
        step = Step(
            action=action,
            file=f"{found.label}/{name}",
            detail=detail,
            topic=found.topic,
            partition=found.partition,
            offsets_lost=offsets_lost,
        )
        return Task(step, do)

    def _segment_tasks(self, segment: InspectedSegment) -> Iterator[Task]:
        name = segment.file.name
        if not segment.must_rewrite:
            if segment.tail is not None:
                tail = segment.tail
                yield self._task("cut", name, f"bytes {tail.position} to {tail.end}: {tail.why}", _nothing)
            return
        for report in self._reports(segment):
            stem = self._stem(segment.file.base_offset, report.position)
            task = self._task("quarantine", name, f"bytes {report.position} to {report.end} as {stem}.bin", _nothing)
            yield task._replace(take_out=partial(self._keep, name, stem, report))
        losses = [loss for loss in segment.scan.losses if loss.next_offset > loss.first_offset]
        kept = sum(piece.end - piece.position for piece in segment.scan.pieces if not isinstance(piece, Loss))
        parts = [f"keep {kept} bytes of whole batches"]
        parts += [f"put right one bit of the batch at {mend.position}" for mend in segment.scan.mends]
        parts += [f"empty batches in the place of {_span(loss.first_offset, loss.next_offset)}" for loss in losses]
        if segment.file.head_fault is not None or segment.file.mark is None:
            parts.append("a new head")
        lost = sum(loss.next_offset - loss.first_offset for loss in losses)
        yield self._task("rewrite", name, "; ".join(parts), partial(self._rewrite, segment), lost)

    def _derived_tasks(self) -> Iterator[Task]:
        found = self._inspection
        rewritten = {index_name(segment.file.base_offset) for segment in found.segments if segment.must_rewrite}
        for name in self._names_of(Kind.INDEX):
            if name not in rewritten:
                yield self._task("rebuild", name, "from the batches", partial(self._remove, name))
        for base, image in found.snapshots.items():
            name = state_name(base)
            if image is None:
                yield self._task("remove", name, "it cannot be told any more", partial(self._remove, name))
            else:
                yield self._task("write", name, "from the batches", partial(self._write_snapshot, name, image))
        if found.rebuilt is not None:
            detail = "the state rebuilt from the batches"
            yield self._task("write", "state.a and state.b", detail, partial(self._save_checkpoint, found.rebuilt))
        else:
            for name in self._names_of(Kind.CHECKPOINT):
                yield self._task("write", name, "from the other checkpoint", _nothing)

    def _names_of(self, kind: Kind) -> list[str]:
        return [finding.file.rsplit("/", 1)[-1] for finding in self._inspection.findings if finding.kind is kind]

    # -- what is taken out -----------------------------------------------------------------------------------

    def _reports(self, segment: InspectedSegment) -> Iterator[QuarantineReport]:
        """Each range of bytes that a rewrite of this segment takes out or changes."""
        file = segment.file
        base, name = file.base_offset, file.name
        if file.head_fault is not None or file.mark is None:
            why = file.head_fault or "the durable mark's checksum does not hold"
            yield self._report(name, Loss(0, min(DATA_START, file.size), base, base, why))
        for mend in segment.scan.mends:
            yield self._report(name, Loss(mend.position, mend.end, mend.first_offset, mend.first_offset, mend.why))
        for loss in segment.scan.losses:
            if loss.position < file.size:
                yield self._report(name, msgspec.structs.replace(loss, end=min(loss.end, file.size)))

    def _report(self, name: str, loss: Loss) -> QuarantineReport:
        return QuarantineReport(
            topic=self._inspection.topic,
            partition=self._inspection.partition,
            file=f"{self._inspection.label}/{name}",
            taken_out_ms=self._now_ms,
            **msgspec.structs.asdict(loss),
        )

    def _stem(self, base: int, position: int) -> str:
        return f"{self._inspection.topic}-{self._inspection.partition}-{base}-{position}"

    def _keep(self, name: str, stem: str, report: QuarantineReport) -> None:
        source = self._disk.open(join(self._folder, name), writable=False)
        try:
            self.quarantined.append(keep_bytes(self._disk, self._data_folder, stem, source, report))
        finally:
            source.close()

    # -- what crashes left -----------------------------------------------------------------------------------

    def _remove(self, name: str) -> None:
        path = join(self._folder, name)
        self._pool.drop(path)
        if self._disk.exists(path):
            self._disk.remove(path)

    def _remove_segment(self, base: int) -> None:
        for name in (state_name(base), index_name(base), log_name(base)):
            self._remove(name)
        self._disk.sync_folder(self._folder)

    def _finish_swap(self, base: int, next_offset: int) -> None:
        self._remove(index_name(base))
        finish_swap(self._disk, self._folder, base, next_offset)

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
        source = self._disk.open(join(self._folder, log_name(file.base_offset)), writable=False)
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
        new = rewriter.write()
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

    def _write_snapshot(self, name: str, image: StateImage) -> None:
        self._remove(name)
        write_whole(self._disk, join(self._folder, name), pack_slot(STATE_MAGIC, 0, encode_image(image)))

    def _save_checkpoint(self, image: StateImage) -> None:
        self._disk.sync_folder(self._folder)  # a checkpoint vouches for what was written before it
        pair = SlotPair(self._disk, self._folder, "state", STATE_MAGIC)
        pair.load()
        pair.save(encode_image(image), copies=2)
        self._disk.sync_folder(self._folder)


def _nothing() -> None:
    """Opening the partition does what is left of it."""


def _span(first: int, following: int) -> str:
    return f"offset {first}" if following - first == 1 else f"offsets {first} to {following - 1}"
