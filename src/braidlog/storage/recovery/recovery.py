"""Open a partition's folder after a clean stop, a crash or damage.

Invariants: a write that never became durable is truncated. Anything else that is wrong is damage, which is reported
and left in place. Recovering twice gives the same result as once, and a crash during recovery changes nothing. An
audit (`braid log verify`) is a dry run that trusts no seal: it reads every batch and finds all damage.

Order: read the checkpoint, finish interrupted swaps, read the headers, finish an interrupted retention or
truncation, scan the batches that the checkpoint does not cover, make the result durable.
"""

from typing import Protocol

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.storage.compaction.segment_swap import check_swap, finish_swap
from braidlog.storage.files import Disk, join
from braidlog.storage.open_files import FilePool
from braidlog.storage.recovery.damage import Change, ChangeKind, Damage, DamageKind, RecoveryReport
from braidlog.storage.recovery.log_reset import Place, reset_log
from braidlog.storage.segment.batch_scan import UNCHECKED_BYTES, BadBatch, ScannedBatch, repair_single_bit, walk
from braidlog.storage.segment.segment import Segment, headers_from, remove_segment
from braidlog.storage.segment.segment_files import (
    BASE_DIGITS,
    CLEANED,
    DATA_START,
    LOG,
    SWAP,
    BadHeader,
    Identity,
    Mark,
    SegmentHeader,
    bases_of,
    durable_end,
    index_name,
    log_name,
    read_head,
    read_mark,
    segment_names,
    state_name,
    stray_names,
    swap_name,
)
from braidlog.storage.state.leader_epoch_file import EpochStart, with_epoch_start
from braidlog.storage.state.partition_state import (
    NOTHING_TO_CUT,
    STATE_MAGIC,
    EpochHistory,
    PartitionState,
    StateImage,
    decode_image,
    encode_image,
    learn_epochs,
    opened_watermark,
    read_snapshot,
)
from braidlog.storage.state.transaction_index import read_end
from braidlog.storage.two_copy_file import TwoCopyFile


class Recovered(msgspec.Struct):
    """A recovered partition: at least one segment, the last one active."""

    segments: list[Segment]
    state: PartitionState
    slots: TwoCopyFile
    report: RecoveryReport


class Auditor(Protocol):
    """Receives every valid batch during an audit, in order."""

    def begin(self, segment: Segment) -> None:
        """Start a segment: its batches follow."""

    def take(self, segment: Segment, found: ScannedBatch) -> str | None:
        """Return why a valid batch must be rejected; None to keep it."""


Span = tuple[int, int]


class Recovery:
    """One opening of one folder. With `read_only` it is a dry run: the same report, no changes on the disk.

    An `auditor`, which only a dry run may have, reads every byte.
    """

    def __init__(  # noqa: PLR0913 - the dependencies of an opening
        self,
        disk: Disk,
        folder: str,
        identity: Identity,
        settings: TopicSettings,
        pool: FilePool,
        *,
        read_only: bool = False,
        auditor: Auditor | None = None,
        begun: EpochStart | None = None,
    ) -> None:
        assert read_only or auditor is None
        self._disk = disk
        self._folder = folder
        self._identity = identity
        self._settings = settings
        self._pool = pool
        self._read_only = read_only
        self._auditor = auditor
        self._begun = begun
        self.report = RecoveryReport()
        self.images: list[StateImage] = []
        """The valid checkpoints, newest first."""
        self._slots = TwoCopyFile(disk, folder, "state", STATE_MAGIC)
        self._durable_end = 0
        self._intended = False
        self._swaps: dict[int, int] = {}
        self._unmarked: set[int] = set()
        """Bases of segments without a valid mark: how far they were durable is unknown."""

    def run(self) -> Recovered:
        """Open the partition; raise if the folder has no usable segment."""
        found = self.inspect()
        if not found.segments:
            raise StorageFault("no segment could be opened; the partition's data is gone", self._folder)
        if not self._read_only:
            self._settle(found.segments, found.state)
        return found

    def inspect(self) -> Recovered:
        """Decide what is valid, what to truncate and what is damaged; possibly no segment remains."""
        images = self.images = self._load_images()
        newest = images[0] if images else None
        if newest is not None and newest.restart is not None:
            place = Place(self._disk, self._folder, self._identity, self._pool, self._settings)
            anew = reset_log(place, newest.restart, newest.begun, read_only=self._read_only)
            self.report.changes += anew.changes
            return Recovered([anew.segment], PartitionState(anew.image), self._slots, self.report)
        self._finish_swaps(EpochHistory(newest.epochs) if newest else None)
        segments = self._open_heads(newest)
        image = self._choose_image(images, segments)
        self._remove_retained(segments, image)
        state = self._walk_tail(segments, image, newest)
        if segments:
            # A retention removes files after its checkpoint and epochs after its files, so the checkpoint may still
            # have those epochs.
            state.epochs.cut_start(min(segments[0].base_offset, state.start_offset))
        if self._read_only:
            self._remove_strays()
        return Recovered(segments, state, self._slots, self.report)

    # -- before the batches ----------------------------------------------------------------------------------

    def _change(self, kind: ChangeKind, file: str, why: str, position: int = 0, end: int = 0, offset: int = 0) -> None:
        self.report.changes.append(Change(kind, file, why, position, end, offset))

    def _finish_swaps(self, epochs: EpochHistory | None) -> None:
        """Remove each unfinished `.cleaned` file; put each finished `.swap` file in place."""
        names = self._disk.names(self._folder)
        for name in names:
            if name.endswith(CLEANED):
                self._change(ChangeKind.REMOVE_REWRITE, name, "an unfinished rewrite was removed")
                if not self._read_only:
                    self._disk.remove(join(self._folder, name))
        for base in bases_of(names, SWAP):
            self._finish_swap(swap_name(base), base, epochs)

    def _finish_swap(self, name: str, base: int, epochs: EpochHistory | None) -> None:
        """Verify a rewrite while the old files still exist: a damaged rewrite then loses nothing."""
        file = self._disk.open(join(self._folder, name), writable=False)
        try:
            next_offset = check_swap(file, self._identity, base, epochs)
        except (BadHeader, BadBatch) as bad:
            why = f"a rewrite cannot take its place: {bad}"
            self._damage(DamageKind.REWRITE, file.path, (0, file.size()), (base, base), why)
            return
        finally:
            file.close()
        self._change(ChangeKind.FINISH_REWRITE, name, "a finished rewrite takes its place", offset=next_offset)
        if self._read_only:
            self._swaps[base] = next_offset
        else:
            finish_swap(self._disk, self._folder, base, next_offset)

    def _load_images(self) -> list[StateImage]:
        images = [with_epoch_start(decode_image(slot.payload), self._begun) for slot in self._slots.load()]
        for name, fault in self._slots.faults.items():
            self._change(ChangeKind.DERIVED, name, f"{fault}; the other checkpoint is used")
        self.report.clean_stop = bool(images) and images[0].clean_stop
        # An intent left in one copy would truncate the log again once the other copy is damaged.
        self._intended = any(image.is_intent for image in images)
        return images

    def _open_heads(self, newest: StateImage | None) -> list[Segment]:
        names = segment_names(self._disk.names(self._folder), self._swaps)
        bases = list(names)
        segments: list[Segment] = []
        for number, base in enumerate(bases):
            file = self._pool.get(join(self._folder, names[base]))
            size, data = file.size(), file.read_at(DATA_START, 0)
            try:
                head, mark = read_head(data, self._identity, base)
            except BadHeader as bad:
                later = [names[after] for after in bases[number + 1 :]]
                if not any(data) and not self._was_durable(base, later, newest):
                    self._drop_from(bases[number:])
                    break
                head, mark = SegmentHeader(self._identity, base, 0, bad.generation), bad.mark
                place = (0, DATA_START if bad.kind is DamageKind.HEAD else size)
                self._damage(bad.kind, file.path, place, (base, base), str(bad))
                if bad.kind is not DamageKind.HEAD:
                    size, mark = DATA_START, None  # nothing in it is used
            if mark is None:
                # In doubt everything counts as durable: a fault is then damage, never an incomplete tail.
                mark = Mark(file.size(), base)
                self._unmarked.add(base)
                if not any(damage.file == file.path for damage in self.report.damages):
                    why = "the durable mark's checksum does not hold"
                    self._damage(DamageKind.MARK, file.path, (64, 84), (base, base), why)
            segment = Segment(self._disk, self._folder, head, mark, size, self._pool, name=names[base])
            segment.use_index(self._settings.index_interval_bytes, read_only=self._read_only)
            segments.append(segment)
        return segments

    def _was_durable(self, base: int, later: list[str], newest: StateImage | None) -> bool:
        """Return whether a checkpoint beyond it or a synced later segment proves that this segment was durable."""
        if newest is None or newest.end_offset > base:
            return True
        heads = ((name, self._pool.get(join(self._folder, name)).read_at(DATA_START, 0)) for name in later)
        marks = (read_mark(data, int(name[:BASE_DIGITS]), 0) for name, data in heads)
        return any(mark is not None and mark.position > DATA_START for mark in marks)

    def _drop_from(self, bases: list[int]) -> None:
        """Remove segments whose creation never became durable, the last one first."""
        for base in reversed(bases):
            self._change(ChangeKind.REMOVE_CREATION, log_name(base), "its creation was never finished; removed")
            if not self._read_only:
                remove_segment(self._disk, self._folder, self._pool, base)

    def _choose_image(self, images: list[StateImage], segments: list[Segment]) -> StateImage:
        """Return the image to start from.

        Its epoch history comes from a checkpoint, or is rebuilt from batches without one.
        """
        if images and images[0].truncate_to == NOTHING_TO_CUT:
            return images[0]
        limit = images[0].truncate_to if images else 2**63
        older = [image for image in images[1:] if image.end_offset <= limit and not image.is_intent]
        for segment in reversed(segments):
            image = self._load_snapshot(segment.base_offset)
            if image is not None and image.end_offset <= limit:
                older.append(image)
                break
        image = max(older, key=lambda i: i.end_offset, default=StateImage(start_offset=0, end_offset=0))
        if segments and image.end_offset < segments[0].base_offset:
            base = segments[0].base_offset
            image = StateImage(start_offset=base, end_offset=base)
        if images:
            # A truncation below the start, to the first offset of the batch that holds the start, leaves an empty log
            # there.
            image.start_offset = min(max(image.start_offset, images[0].start_offset), limit)
            image.cleaned_offset = min(images[0].cleaned_offset, limit)
            image.watermark, image.begun = min(images[0].watermark, limit), images[0].begun
            history = EpochHistory(images[0].epochs)
            history.cut_end(limit)
            image.epochs = history.entries()
            return image
        self._change(ChangeKind.DERIVED, "state", "no checkpoint holds; the state is rebuilt from the batches")
        if segments:
            # Without a checkpoint a missing first segment looks the same as one that retention removed.
            image.start_offset = max(image.start_offset, segments[0].base_offset)
        # The snapshot's epochs, then those of the batches behind it: one flipped epoch affects only its own batch.
        image.begun = 0 if self._begun is None else self._begun.number
        image.epochs = learn_epochs(image.epochs, headers_from(segments, image.end_offset)).entries()
        return image

    def _load_snapshot(self, base: int) -> StateImage | None:
        try:
            return read_snapshot(self._disk, self._folder, base)
        except ValueError as error:
            self._change(ChangeKind.DERIVED, state_name(base), f"{error}; an earlier one is used")
            return None

    def _remove_retained(self, segments: list[Segment], image: StateImage) -> None:
        """Finish a retention that raised the start offset and did not remove all files."""
        while len(segments) > 1 and segments[1].base_offset <= image.start_offset:
            segment = segments.pop(0)
            self._change(
                ChangeKind.REMOVE_RETAINED, log_name(segment.base_offset), "lies below the log's start; removed"
            )
            if not self._read_only:
                segment.remove()
        if segments and segments[0].base_offset > image.start_offset:
            self._miss(image.start_offset, segments[0].base_offset)

    # -- the batches -----------------------------------------------------------------------------------------

    def _walk_tail(self, segments: list[Segment], image: StateImage, newest: StateImage | None) -> PartitionState:
        state = PartitionState(image)
        limit = newest.truncate_to if newest and newest.truncate_to != NOTHING_TO_CUT else None
        saved_end = None if newest is None else newest.end_offset
        self._durable_end = durable_end(self._disk, self._folder, self._swaps, saved_end) if limit is None else limit
        number = 0
        while number < len(segments):
            segment = segments[number]
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            if following is not None and following <= image.end_offset and self._trust(segment, following):
                number += 1
                continue
            ended = self._walk_segment(segments, number, state, limit)
            if ended or self._is_broken(segments, number):
                for later in reversed(segments[number + 1 :]):
                    if not self._read_only:
                        later.remove()
                    why = "follows a write that never became durable; removed"
                    self._change(ChangeKind.REMOVE_BEHIND, log_name(later.base_offset), why, end=later.size)
                del segments[number + 1 :]
            number += 1
        self._lose_end(segments, state)
        state.watermark = opened_watermark(state.watermark, state.end_offset)
        announced = state.epochs.entries()
        state.epochs.move_latest_epoch(state.end_offset)
        if state.epochs.entries() != announced:
            why = f"announced beyond what became durable, begins at {state.end_offset}"
            self._change(ChangeKind.DERIVED, f"epoch {state.epochs.latest}", why)
        return state

    def _trust(self, segment: Segment, following: int) -> bool:
        """Accept a sealed segment below the checkpoint by its seal; its batches are verified on the first read."""
        if self._auditor is not None:
            return False
        seal = segment.read_seal()
        if seal is None or seal.offset != following or not seal.position == segment.size == segment.mark.position:
            return False
        segment.next_offset = seal.offset
        segment.max_timestamp_ms = seal.timestamp_ms
        return True

    def _walk_segment(self, segments: list[Segment], number: int, state: PartitionState, limit: int | None) -> bool:
        """Apply every batch of one segment that the state does not cover. Return whether the log ends inside it."""
        segment = segments[number]
        if self._auditor is not None:
            self._auditor.begin(segment)
        entry = segment.load_index_below(state.end_offset if self._auditor is None else None)
        position, offset = entry.position, entry.offset
        while limit is None or offset < limit:
            try:
                for found in walk(segment.file, position, segment.size, offset, epochs=state.epochs):
                    self._take(segment, state, found)
                    position, offset = found.end, found.header.next_offset
                    if offset == limit:
                        break  # before the next batch is read: the history may not have its epoch any longer
                else:
                    return False
            except BadBatch as bad:
                if not self._is_durable(segments, number, bad.position, bad.offset):
                    return self._end_before(segment, bad)
                resumed = self._step_over(segments, number, state, bad)
                if resumed is None:
                    return False
                position, offset = resumed
        if position < segment.size:
            self._cut(segment, position, offset, "a truncation that was begun is finished")
        return True

    def _end_before(self, segment: Segment, bad: BadBatch) -> bool:
        """End a segment where nothing durable follows; return whether the log ends there.

        If only zeros follow, the log may continue in the next segment: the power failed before the sync that marked
        this one as full.
        """
        if segment.leave_reserve(bad.position) > bad.position:
            why = f"incomplete write discarded: {bad.why}"
            self._cut(segment, bad.position, bad.offset, why)
            return True
        if not self._read_only:
            segment.drop_reserve()
            segment.sync_file()  # before a segment behind this one is synced
            segment.retire()
        return False

    def _step_over(
        self, segments: list[Segment], number: int, state: PartitionState, bad: BadBatch
    ) -> tuple[int, int] | None:
        """Report the damage at `bad`; return where batches resume behind it as (position, offset), None if nowhere."""
        segment = segments[number]
        found = None if self._auditor is None else repair_single_bit(segment.file, segment.size, bad, state.epochs)
        if found is not None:
            end, offsets = found.end, (bad.offset, bad.offset)
            try:
                self._take(segment, state, found)
            except BadBatch:
                pass  # no producer ever wrote this batch: it stays lost
            else:
                mended = found.window[:UNCHECKED_BYTES]
                self._damage(DamageKind.BATCH, segment.path, (bad.position, end), offsets, bad.why, mended)
                return end, found.header.next_offset
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        damage, resumed = segment.step_over(bad, max(self._expected_end(segments, number), bad.offset), following)
        if resumed is None:
            damage = msgspec.structs.replace(damage, end=segment.leave_reserve(bad.position))
        self.report.damages.append(damage)
        return resumed

    def _take(self, segment: Segment, state: PartitionState, found: ScannedBatch) -> None:
        header = found.header
        try:
            end = read_end(found.window, found.at, header)
            segment.account_for(found.position, header, verified=True)
            self.report.walked_bytes += header.size_bytes
            if self._auditor is not None and (why := self._auditor.take(segment, found)) is not None:
                offsets = header.base_offset, header.next_offset
                self._damage(DamageKind.BATCH, segment.path, (found.position, found.end), offsets, why)
            elif header.base_offset >= state.end_offset:
                state.apply(header, end=end)
        except (BrokerError, ProtocolError) as error:
            raise BadBatch(found.position, header.base_offset, str(error)) from error

    def _is_durable(self, segments: list[Segment], number: int, position: int, offset: int) -> bool:
        """Return whether the bytes at `position` had been synced.

        They were if they are below the mark (which power loss may leave one sync behind), below an offset that a
        checkpoint recorded as durable, or before a segment that was synced later.
        """
        later = segments[number + 1 :]
        return (
            position < segments[number].mark.position
            or offset < self._durable_end
            or any(segment.mark.position > DATA_START for segment in later)
        )

    def _expected_end(self, segments: list[Segment], number: int) -> int:
        """Return the offset that the segment must reach: the base of the next one, or the last one's mark."""
        return segments[number + 1].base_offset if number + 1 < len(segments) else segments[number].mark.next_offset

    def _is_broken(self, segments: list[Segment], number: int) -> bool:
        """Return whether the segment ends before the next one begins because its last writes never became durable."""
        segment, expected = segments[number], self._expected_end(segments, number)
        is_last = number + 1 == len(segments)
        if segment.next_offset == expected or (is_last and segment.next_offset > expected):
            return False
        if not self._is_durable(segments, number, segment.size, segment.next_offset):
            return True
        self._lose(segment, segment.next_offset, expected, f"it must reach offset {expected}, {{}} is the last")
        return False

    def _lose(self, segment: Segment, first: int, next_offset: int, why: str) -> None:
        """Report offsets missing from the end of a segment, except those already reported.

        Offsets below the segment's mark were in this file, which was cut. Those beyond were in a file that is
        missing.
        """
        first = max([first, *(damage.next_offset for damage in self.report.damages if damage.first_offset <= first)])
        held = next_offset if segment.base_offset in self._unmarked else min(segment.mark.next_offset, next_offset)
        if first < held:
            place = (segment.size, max(segment.size, segment.mark.position))
            self._damage(DamageKind.CUT, segment.path, place, (first, held), why.format(first - 1))
        if max(first, held) < next_offset:
            self._miss(max(first, held), next_offset)

    def _miss(self, first: int, next_offset: int) -> None:
        path = join(self._folder, log_name(first))
        self._damage(DamageKind.MISSING, path, (0, 0), (first, next_offset), "the segment is missing")

    def _cut(self, segment: Segment, position: int, next_offset: int, why: str) -> None:
        self.report.torn_bytes += segment.size - position
        self._change(ChangeKind.CUT, log_name(segment.base_offset), why, position, segment.size, next_offset)
        if self._read_only:
            segment.size, segment.next_offset = position, next_offset
        else:
            segment.truncate(position, next_offset)

    def _lose_end(self, segments: list[Segment], state: PartitionState) -> None:
        """Report the missing offsets if the log ends before a durable offset: reads there must raise a fault."""
        if segments:
            last, expected = segments[-1], max(self._durable_end, state.end_offset)
            self._lose(last, last.next_offset, expected, "the end of the log is missing, {} is the last")
        elif state.start_offset < self._durable_end:
            self._miss(state.start_offset, self._durable_end)
        state.end_offset = max([state.end_offset, *(damage.next_offset for damage in self.report.damages)])

    def _damage(self, kind: DamageKind, file: str, place: Span, offsets: Span, why: str, mended: bytes = b"") -> None:
        self.report.damages.append(Damage(file, *place, *offsets, why, kind, mended))

    # -- after the batches -----------------------------------------------------------------------------------

    def _settle(self, segments: list[Segment], state: PartitionState) -> None:
        """Make the recovered state durable: a record that was read must not vanish in the next crash."""
        if self.report.damages:
            return  # nothing is written to a damaged partition until the operator decides
        try:
            self._make_durable(segments, state)
        except StorageFault as fault:
            self.report.forgive(fault)

    def _make_durable(self, segments: list[Segment], state: PartitionState) -> None:
        for segment in segments[:-1]:
            if segment.mark.position != segment.size:
                segment.activate()
                segment.write_again()
                segment.sync_to_end()
                segment.seal_index()
            elif not segment.index_is_sealed:
                self._change(ChangeKind.DERIVED, index_name(segment.base_offset), "rebuilt")
                segment.sync_file()  # the visible length may be that of a dropped reserve, not synced
                segment.seal_index()
        active = segments[-1]
        active.activate()
        if active.mark.position != active.size or not active.data_bytes:
            active.write_again()
            active.sync(active.reach())
        # Even if the mark agrees: a process killed during a truncation leaves a visible length that is not durable.
        active.sync_file()
        self._remove_strays()
        self._disk.sync_folder(self._folder)
        # Before the checkpoint: recovery trusts the index file up to the checkpoint's offset.
        active.save_index(sealed=False)
        self._slots.save(encode_image(state.image()), copies=2 if self.report.changes or self._intended else 1)

    def _remove_strays(self) -> None:
        """Remove index and snapshot files without a segment: its creation or removal was interrupted."""
        names = self._disk.names(self._folder)
        kept = {*bases_of(names, LOG), *self._swaps}
        kept |= {damage.first_offset for damage in self.report.damages if damage.kind is DamageKind.MISSING}
        for name in stray_names(names, kept):
            self._change(ChangeKind.REMOVE_STRAY, name, "belongs to no segment; removed")
            if not self._read_only:
                self._disk.remove(join(self._folder, name))
