"""The steps that repair a partition, with their descriptions.

Removed bytes are durable in quarantine before anything changes. Every intact batch stays. Lost offsets are replaced by
empty batches and never reused. After a crash the repair can be run again.

Order: quarantine; the changes of recovery; damaged segments, in order; missing segments; derived files: indexes are
removed, snapshots and checkpoints rewritten. Opening the partition, which rebuilds indexes and makes a checkpoint, is
the last step.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import NamedTuple

import msgspec

from braidlog.codec.batch.header import empty_batch
from braidlog.model.settings import TopicSettings
from braidlog.storage.compaction.segment_swap import SegmentRewriter, publish, swap_in
from braidlog.storage.files import Disk, File, join
from braidlog.storage.open_files import FilePool
from braidlog.storage.recovery.damage import ChangeKind, Damage, DamageKind
from braidlog.storage.recovery.recovery import Recovered, Recovery
from braidlog.storage.segment.batch_scan import walk
from braidlog.storage.segment.segment import Segment
from braidlog.storage.segment.segment_files import BASE_DIGITS, DATA_START, SegmentHeader, log_name, state_name
from braidlog.storage.state.partition_state import STATE_MAGIC, StateImage, encode_image, write_snapshot
from braidlog.storage.two_copy_file import TwoCopyFile
from braidlog.tools.findings import Kind
from braidlog.tools.inspect import Inspection
from braidlog.tools.repair.quarantine import QuarantineReport, keep_bytes

_SPAN_MAX = 2**31 - 1
_ACTIONS = {ChangeKind.FINISH_REWRITE: "finish", ChangeKind.CUT: "cut"}
_IN_A_FILE = (DamageKind.BATCH, DamageKind.HEAD, DamageKind.MARK, DamageKind.CUT, DamageKind.FOREIGN)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a repair. `file` is relative to the data folder."""

    action: str
    file: str
    detail: str
    topic: str | None = None
    partition: int | None = None
    offsets_lost: int = 0


class Task(NamedTuple):
    """A step and its functions. All `take_out`, which copy bytes to quarantine, run before any `do` of the partition."""

    step: Step
    do: Callable[[], object]
    take_out: Callable[[], object] | None = None


class PartitionRepair:
    """The repair of a partition: `run` executes `tasks`."""

    def __init__(
        self,
        disk: Disk,
        data_folder: str,
        pool: FilePool,
        settings: TopicSettings,
        inspection: Inspection,
        opened: Recovered,
        now_ms: int,
    ) -> None:
        self._disk = disk
        self._data_folder = data_folder
        self._pool = pool
        self._settings = settings
        self._inspection = inspection
        self._opened = opened
        self._folder = inspection.folder
        self._now_ms = now_ms
        self._epochs = opened.state.epochs
        # Opening would skip an empty batch that spans the end of a checkpoint.
        starts = {start for _, start in self._epochs.entries()}
        self._boundaries = sorted({*starts, *inspection.boundaries, opened.state.start_offset})
        self._latest_ms = -1
        self.quarantined: list[str] = []

    def run(self) -> None:
        tasks = list(self.tasks())
        for task in tasks:
            if task.take_out is not None:
                task.take_out()
        found = self._inspection
        Recovery(self._disk, self._folder, found.identity, self._settings, self._pool, begun=found.begun).inspect()
        for task in tasks:
            task.do()

    def tasks(self) -> Iterator[Task]:
        for change in self._opened.report.changes:
            if change.kind is not ChangeKind.DERIVED:
                detail = f"bytes {change.position} to {change.end}: " if change.kind is ChangeKind.CUT else ""
                yield self._task(_ACTIONS.get(change.kind, "remove"), change.file, detail + change.why, _nothing)
        damages = self._opened.report.damages
        for damage in damages:
            if damage.kind is DamageKind.REWRITE:
                name = _name(damage)
                yield from self._quarantine(damage, then=partial(self._remove, name))
        for segment in self._opened.segments:
            inside = [damage for damage in damages if damage.file == segment.path and damage.kind in _IN_A_FILE]
            if inside:
                yield from self._segment_tasks(segment, sorted(inside, key=lambda damage: damage.position))
        for damage in damages:
            if damage.kind is DamageKind.MISSING:
                detail = f"empty batches for {_span(damage)}"
                lost = damage.next_offset - damage.first_offset
                yield self._task("create", _name(damage), detail, partial(self._create, damage), lost)
        yield from self._derived_tasks()

    def _task(self, action: str, name: str, detail: str, do: Callable[[], object], offsets_lost: int = 0) -> Task:
        found = self._inspection
        step = Step(
            action=action,
            file=f"{found.label}/{name}",
            detail=detail,
            topic=found.report.topic,
            partition=found.report.partition,
            offsets_lost=offsets_lost,
        )
        return Task(step, do)

    def _segment_tasks(self, segment: Segment, damages: list[Damage]) -> Iterator[Task]:
        for damage in damages:
            yield from self._quarantine(damage)
        losses = [damage for damage in damages if damage.next_offset > damage.first_offset]
        taken = sum(min(damage.end, segment.size) - max(damage.position, DATA_START) for damage in losses if damage.end)
        parts = [f"keep {max(segment.data_bytes - max(taken, 0), 0)} bytes of intact batches"]
        parts += [f"correct one bit of the batch at {damage.position}" for damage in damages if damage.mended]
        parts += [f"empty batches for {_span(loss)}" for loss in losses]
        if any(damage.kind in (DamageKind.HEAD, DamageKind.MARK) for damage in damages):
            parts.append("a new header")
        lost = sum(loss.next_offset - loss.first_offset for loss in losses)
        yield self._task("rewrite", _name(damages[0]), "; ".join(parts), partial(self._rewrite, segment, damages), lost)

    def _derived_tasks(self) -> Iterator[Task]:
        found = self._inspection
        for name in self._names_of(Kind.INDEX):
            yield self._task("rebuild", name, "from the batches", partial(self._remove, name))
        for base, image in found.snapshots.items():
            name = state_name(base)
            if image is None:
                yield self._task("remove", name, "cannot be rebuilt", partial(self._remove, name))
            else:
                yield self._task("write", name, "from the batches", partial(self._write_snapshot, name, image))
        if found.rebuilt is not None:
            detail = "the state rebuilt from the batches"
            yield self._task("write", "state.a and state.b", detail, partial(self._save_checkpoint, found.rebuilt))
        else:
            for name in self._names_of(Kind.CHECKPOINT):
                yield self._task("write", name, "from the other checkpoint, or from the batches", _nothing)

    def _names_of(self, kind: Kind) -> list[str]:
        return [finding.file.rsplit("/", 1)[-1] for finding in self._inspection.report.findings if finding.kind is kind]

    # -- quarantine ------------------------------------------------------------------------------------------

    def _quarantine(self, damage: Damage, then: Callable[[], object] | None = None) -> Iterator[Task]:
        """Quarantine the bytes of a file that the repair removes or changes, if any."""
        if damage.kind is DamageKind.CUT:
            return
        source = self._disk.open(damage.file, writable=False)
        end = min(damage.end, source.size())
        source.close()
        found, name = self._inspection, _name(damage)
        stem = f"{found.report.topic}-{found.report.partition}-{int(name[:BASE_DIGITS])}-{damage.position}"
        report = QuarantineReport(
            topic=found.report.topic,
            partition=found.report.partition,
            file=f"{found.label}/{name}",
            position=damage.position,
            end=end,
            first_offset=damage.first_offset,
            next_offset=damage.next_offset,
            why=damage.why,
            taken_out_ms=self._now_ms,
        )
        detail = f"bytes {damage.position} to {end} as {stem}.bin" + ("" if then is None else ", then remove the file")
        take_out = partial(self._keep, damage.file, stem, report)
        yield self._task("quarantine", name, detail, then or _nothing)._replace(take_out=take_out)

    def _keep(self, path: str, stem: str, report: QuarantineReport) -> None:
        with closing(self._disk.open(path, writable=False)) as source:
            self.quarantined.append(keep_bytes(self._disk, self._data_folder, stem, source, report))

    def _remove(self, name: str) -> None:
        path = join(self._folder, name)
        self._pool.drop(path)
        if self._disk.exists(path):
            self._disk.remove(path)

    # -- segments --------------------------------------------------------------------------------------------

    def _rewrite(self, segment: Segment, damages: list[Damage]) -> None:
        """Rewrite a segment: copy the intact ranges, and fill the damaged ones with empty batches."""
        head = segment.head
        head = head._replace(generation=head.generation + 1, created_ms=head.created_ms or self._now_ms)
        rewriter = self._begin(head)
        source = self._disk.open(join(self._folder, log_name(head.base_offset)), writable=False)
        try:
            position = DATA_START
            for damage in damages:
                self._carry_over(source, position, damage.position, rewriter)
                if damage.mended:
                    rest = damage.position + len(damage.mended)
                    rewriter.keep(damage.mended + source.read_at(damage.end - rest, rest))
                else:
                    self._fill(rewriter, damage)
                position = max(position, damage.end)
            self._carry_over(source, position, segment.size, rewriter)
        except BaseException:
            rewriter.abandon()
            raise
        finally:
            source.close()
        self._finish(rewriter)

    def _begin(self, head: SegmentHeader) -> SegmentRewriter:
        return SegmentRewriter(self._disk, self._folder, head, self._pool, self._settings.index_interval_bytes)

    def _finish(self, rewriter: SegmentRewriter) -> None:
        new = rewriter.write()
        publish(self._disk, self._folder, new.base_offset)
        swap_in(self._disk, self._folder, self._pool, [new], new)
        self._disk.sync_folder(self._folder)

    def _carry_over(self, source: File, position: int, end: int, rewriter: SegmentRewriter) -> None:
        for found in walk(source, position, end, rewriter.next_offset):
            rewriter.keep(found.window[found.at : found.at + found.header.size_bytes])
            self._latest_ms = max(self._latest_ms, found.header.max_timestamp)

    def _fill(self, rewriter: SegmentRewriter, damage: Damage) -> None:
        """Write empty batches for lost offsets, as few as possible, with the timestamp of the preceding batch."""
        first, next_offset = damage.first_offset, damage.next_offset
        while first < next_offset:
            end = min([next_offset, first + _SPAN_MAX, *(b for b in self._boundaries if b > first)])
            timestamp_ms = self._latest_ms if self._latest_ms >= 0 else self._now_ms
            rewriter.keep(empty_batch(first, end, self._epochs.at(first), timestamp_ms))
            first = end

    def _create(self, missing: Damage) -> None:
        rewriter = self._begin(SegmentHeader(self._inspection.identity, missing.first_offset, self._now_ms, 1))
        self._fill(rewriter, missing)
        self._finish(rewriter)

    # -- derived files ---------------------------------------------------------------------------------------

    def _write_snapshot(self, name: str, image: StateImage) -> None:
        self._remove(name)
        write_snapshot(self._disk, self._folder, image)

    def _save_checkpoint(self, image: StateImage) -> None:
        self._disk.sync_folder(self._folder)  # a checkpoint vouches for what was written before it
        pair = TwoCopyFile(self._disk, self._folder, "state", STATE_MAGIC)
        pair.load()
        pair.save(encode_image(image), copies=2)
        self._disk.sync_folder(self._folder)


def _nothing() -> None:
    """Do nothing: recovery does it."""


def _name(damage: Damage) -> str:
    return damage.file.rsplit("/", 1)[-1]


def _span(damage: Damage) -> str:
    first, following = damage.first_offset, damage.next_offset
    return f"offset {first}" if following - first == 1 else f"offsets {first} to {following - 1}"
