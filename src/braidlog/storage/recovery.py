"""Open a partition's folder after whatever happened to it.

Knows: what a crash can leave behind and what it cannot. Refuses to know: reading, appending, policies.
Invariant: a write that never became durable is cut off; anything else that is wrong is damage, and damage is reported and
left in place, never cut. Recovering twice gives the same as recovering once, and a crash in the middle changes nothing.

Order: read the checkpoint, finish interrupted swaps, read the heads, finish an interrupted retention or truncation, walk the
batches that the checkpoint does not cover, make durable what was found.
"""

from collections.abc import Mapping, Sequence

import msgspec

from braidlog.codec.batch import BatchHeader
from braidlog.codec.errors import ProtocolError
from braidlog.codec.records import ControlKind, control_kind
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.storage.damage import Change, ChangeKind, Damage, RecoveryReport
from braidlog.storage.epochs import EpochHistory
from braidlog.storage.files import Buffer, Disk, File, join, read_whole
from braidlog.storage.head import (
    DATA_START,
    BadHead,
    Identity,
    Mark,
    SegmentHead,
    index_name,
    log_name,
    read_head,
    read_mark,
    state_name,
)
from braidlog.storage.pool import FilePool
from braidlog.storage.segment import Segment
from braidlog.storage.slots import SlotPair, unpack_slot
from braidlog.storage.state import NOTHING_TO_CUT, PartitionState, StateImage, decode_image, encode_image
from braidlog.storage.walk import BadBatch, Found, walk

STATE_MAGIC = b"BRAIDSTA"
BASE_DIGITS = 20
_LOG = ".log"
_INDEX = ".idx"
_STATE = ".state"
CLEANED = ".cleaned"
SWAP = ".swap"


class Recovered(msgspec.Struct):
    """A partition ready for use: at least one segment, the last one active."""

    segments: list[Segment]
    state: PartitionState
    slots: SlotPair
    report: RecoveryReport


def is_commit(data: Buffer, position: int, header: BatchHeader) -> bool | None:
    """What a batch says about its transaction: True committed, False aborted, None if it is not a marker."""
    if not header.is_control:
        return None
    return control_kind(data, position, header) is ControlKind.COMMIT


class Recovery:
    """One opening of one folder. With `read_only` it is a dry run: the same report, and nothing changes on the disk."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        identity: Identity,
        settings: TopicSettings,
        pool: FilePool,
        *,
        read_only: bool = False,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._identity = identity
        self._settings = settings
        self._pool = pool
        self._read_only = read_only
        self.report = RecoveryReport()
        self._slots = SlotPair(disk, folder, "state", STATE_MAGIC)
        self._durable_end = 0
        self._intended = False
        self._swaps: dict[int, int] = {}

    def run(self) -> Recovered:
        """Open the partition; a folder without a segment is refused."""
        found = self.look()
        if not found.segments:
            raise StorageFault("no segment could be opened; the partition's data is gone", self._folder)
        if not self._read_only:
            self._settle(found.segments, found.state)
        return found

    def look(self) -> Recovered:
        """Decide what is whole, what is to be cut and what is damage; there may be no segment left."""
        images = self._load_images()
        self._finish_swaps(EpochHistory(images[0].epochs) if images else None)
        segments = self._open_heads(images[0] if images else None)
        image, strict = self._choose_image(images, segments)
        self._remove_retained(segments, image)
        state = self._walk_tail(segments, image, images[0] if images else None, strict=strict)
        if segments:
            # The checkpoint of a retention is older than what it then forgot: its files first, then their epochs.
            state.epochs.cut_start(segments[0].base_offset)
        return Recovered(segments, state, self._slots, self.report)

    # -- before the batches ----------------------------------------------------------------------------------

    def _change(self, kind: ChangeKind, file: str, why: str, position: int = 0, end: int = 0, offset: int = 0) -> None:
        self.report.changes.append(Change(kind, file, why, position, end, offset))

    def _finish_swaps(self, epochs: EpochHistory | None) -> None:
        """A `.cleaned` file was not finished: it goes. A `.swap` file is whole: it takes its place."""
        names = self._disk.names(self._folder)
        for name in names:
            if name.endswith(CLEANED):
                self._change(ChangeKind.REMOVE_REWRITE, name, "an unfinished rewrite was removed")
                if not self._read_only:
                    self._disk.remove(join(self._folder, name))
        for base in bases_of(names, SWAP):
            self._finish_swap(swap_name(base), base, epochs)

    def _finish_swap(self, name: str, base: int, epochs: EpochHistory | None) -> None:
        """Check before the old files go: while they are there, a damaged rewrite costs nothing."""
        file = self._disk.open(join(self._folder, name), writable=False)
        try:
            next_offset = check_swap(file, self._identity, base, epochs)
        except (BadHead, BadBatch) as bad:
            self._damage(name, 0, file.size(), base, base, f"a rewrite cannot take its place: {bad}")
            return
        finally:
            file.close()
        self._change(ChangeKind.FINISH_REWRITE, name, "a finished rewrite takes its place", offset=next_offset)
        if self._read_only:
            self._swaps[base] = next_offset
        else:
            finish_swap(self._disk, self._folder, base, next_offset)

    def _load_images(self) -> list[StateImage]:
        images = [decode_image(slot.payload) for slot in self._slots.load()]
        for name, fault in self._slots.faults.items():
            self._change(ChangeKind.DERIVED, name, f"{fault}; the other checkpoint is used")
        self.report.clean_stop = bool(images) and images[0].clean_stop
        # An intent that stays in a slot would cut the log again the day the other slot is damaged.
        self._intended = any(image.truncate_to != NOTHING_TO_CUT for image in images)
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
            except BadHead as bad:
                later = [names[after] for after in bases[number + 1 :]]
                if not any(data) and not self._was_durable(base, later, newest):
                    self._drop_from(bases[number:])
                    break
                self._damage(log_name(base), 0, DATA_START, base, base, str(bad))
                head, mark = SegmentHead(self._identity, base, 0, 0), bad.mark
            if mark is None:
                if not any(d.file == log_name(base) for d in self.report.damages):
                    self._damage(log_name(base), 64, 84, base, base, "the durable mark's checksum does not hold")
                mark = Mark(
                    size, base
                )  # in doubt everything counts as durable: a fault is then damage, never a torn tail
            segment = Segment(self._disk, self._folder, head, mark, size, self._pool, name=names[base])
            segment.use_index(self._settings.index_interval_bytes, read_only=self._read_only)
            segments.append(segment)
        return segments

    def _was_durable(self, base: int, later: list[str], newest: StateImage | None) -> bool:
        """Whether this segment is known to have held something durable: a checkpoint beyond it, or a synced successor."""
        if newest is None or newest.end_offset > base:
            return True
        heads = ((name, self._pool.get(join(self._folder, name)).read_at(DATA_START, 0)) for name in later)
        marks = (read_mark(data, int(name[:BASE_DIGITS]), 0) for name, data in heads)
        return any(mark is not None and mark.position > DATA_START for mark in marks)

    def _drop_from(self, bases: list[int]) -> None:
        """Remove segments whose creation never became durable, last one first."""
        for base in reversed(bases):
            self._change(ChangeKind.REMOVE_CREATION, log_name(base), "its creation was never finished; removed")
            if self._read_only:
                continue
            for name in (state_name(base), index_name(base), log_name(base)):
                path = join(self._folder, name)
                self._pool.drop(path)
                if self._disk.exists(path):
                    self._disk.remove(path)

    def _choose_image(self, images: list[StateImage], segments: list[Segment]) -> tuple[StateImage, bool]:
        """The image to fold from, and whether its epoch history is complete (a slot) or must be learned (anything less)."""
        if images and images[0].truncate_to == NOTHING_TO_CUT:
            return images[0], True
        limit = images[0].truncate_to if images else 2**63
        older = [image for image in images[1:] if image.end_offset <= limit and image.truncate_to == NOTHING_TO_CUT]
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
            # A cut below the start, to the beginning of the batch that the start is in, leaves an empty log there.
            image.start_offset = min(max(image.start_offset, images[0].start_offset), limit)
            image.cleaned_offset = min(images[0].cleaned_offset, limit)
            history = EpochHistory(images[0].epochs)
            history.cut_end(limit)
            image.epochs = history.entries()
            return image, True
        self._change(ChangeKind.DERIVED, "state", "no checkpoint holds; the state is rebuilt from the batches")
        return image, False

    def _load_snapshot(self, base: int) -> StateImage | None:
        path = join(self._folder, state_name(base))
        if not self._disk.exists(path):
            return None
        try:
            slot = unpack_slot(STATE_MAGIC, state_name(base), read_whole(self._disk, path))
        except ValueError as error:
            self._change(ChangeKind.DERIVED, state_name(base), f"{error}; an earlier one is used")
            return None
        return decode_image(slot.payload)

    def _remove_retained(self, segments: list[Segment], image: StateImage) -> None:
        """Finish a retention that raised the start offset and did not get to remove all it had to."""
        while len(segments) > 1 and segments[1].base_offset <= image.start_offset:
            segment = segments.pop(0)
            name = log_name(segment.base_offset)
            self._change(ChangeKind.REMOVE_RETAINED, name, "lies below the log's start; removed")
            if not self._read_only:
                segment.remove()
        if segments and segments[0].base_offset > image.start_offset:
            missing = segments[0].base_offset
            self._damage(log_name(image.start_offset), 0, 0, image.start_offset, missing, "the segment is missing")

    # -- the batches -----------------------------------------------------------------------------------------

    def _walk_tail(
        self, segments: list[Segment], image: StateImage, newest: StateImage | None, *, strict: bool
    ) -> PartitionState:
        state = PartitionState(image)
        limit = newest.truncate_to if newest and newest.truncate_to != NOTHING_TO_CUT else None
        self._durable_end = 0 if newest is None else newest.end_offset if limit is None else limit
        number = 0
        while number < len(segments):
            segment = segments[number]
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            if following is not None and following <= image.end_offset and self._trust(segment, following):
                number += 1
                continue
            ended = self._walk_segment(segments, number, state, limit, strict=strict)
            if ended or self._is_broken(segments, number):
                for later in reversed(segments[number + 1 :]):
                    if not self._read_only:
                        later.remove()
                    why = "follows a write that never became durable; removed"
                    self._change(ChangeKind.REMOVE_BEHIND, log_name(later.base_offset), why, end=later.size)
                del segments[number + 1 :]
            number += 1
        self._lose_end(segments, state, self._durable_end)
        announced = state.epochs.entries()
        state.epochs.draw_back(state.end_offset)
        if state.epochs.entries() != announced:
            why = f"announced beyond what became durable, begins at {state.end_offset}"
            self._change(ChangeKind.DERIVED, f"epoch {state.epochs.latest}", why)
        return state

    def _trust(self, segment: Segment, following: int) -> bool:
        """A sealed segment below the checkpoint is taken at its seal; its batches are checked when they are first read."""
        seal = segment.read_seal()
        if seal is None or seal.offset != following or not seal.position == segment.size == segment.mark.position:
            return False
        segment.next_offset = seal.offset
        segment.max_timestamp_ms = seal.timestamp_ms
        return True

    def _walk_segment(
        self, segments: list[Segment], number: int, state: PartitionState, limit: int | None, *, strict: bool
    ) -> bool:
        """Take every batch of one segment that the state does not cover. Return whether the log ends inside it."""
        segment = segments[number]
        entry = segment.load_index_below(state.end_offset)
        position, offset = entry.position, entry.offset
        epochs = state.epochs if strict else None
        while limit is None or offset < limit:
            try:
                for found in walk(segment.file, position, segment.size, offset, epochs=epochs):
                    self._take(segment, state, found, learn=not strict)
                    position, offset = found.position + found.header.size_bytes, found.header.next_offset
                    if offset == limit:
                        break  # before the next batch is looked at: the history may have forgotten its epoch
                else:
                    return False
            except BadBatch as bad:
                if not self._is_durable(segments, number, bad.position, bad.offset):
                    why = f"a write that never became durable is cut off: {bad.why}"
                    self._cut(segment, bad.position, bad.offset, why)
                    return True
                damage, resumed = segment.step_over(bad, max(self._expected_end(segments, number), bad.offset))
                self.report.damages.append(damage)
                if resumed is None:
                    return False
                position, offset = resumed
        if position < segment.size:
            self._cut(segment, position, offset, "a truncation that was begun is finished")
        return True

    def _take(self, segment: Segment, state: PartitionState, found: Found, *, learn: bool) -> None:
        header = found.header
        segment.take(found.position, header, verified=True)
        self.report.walked_bytes += header.size_bytes
        if header.base_offset < state.end_offset:
            return
        try:
            if learn:
                state.epochs.begin(header.leader_epoch, header.base_offset)
            state.apply(header, commit=is_commit(found.window, found.at, header))
        except (BrokerError, ProtocolError) as error:
            raise BadBatch(found.position, header.base_offset, str(error)) from error

    def _is_durable(self, segments: list[Segment], number: int, position: int, offset: int) -> bool:
        """Whether the bytes at `position` had been synced: below the mark (which power loss may have left one sync behind), or
        below what a checkpoint saw durable, or before a segment that was synced later.
        """
        later = segments[number + 1 :]
        return (
            position < segments[number].mark.position
            or offset < self._durable_end
            or any(segment.mark.position > DATA_START for segment in later)
        )

    def _expected_end(self, segments: list[Segment], number: int) -> int:
        """The offset the segment must reach: that of the next one, or the last one's mark."""
        return segments[number + 1].base_offset if number + 1 < len(segments) else segments[number].mark.next_offset

    def _is_broken(self, segments: list[Segment], number: int) -> bool:
        """Whether the segment ends before the next one begins, because its last writes never became durable."""
        segment, expected = segments[number], self._expected_end(segments, number)
        is_last = number + 1 == len(segments)
        if segment.next_offset == expected or (is_last and segment.next_offset > expected):
            return False
        if not self._is_durable(segments, number, segment.size, segment.next_offset):
            return True
        self._lose(segment, segment.next_offset, expected, f"it must reach offset {expected}, {{}} is the last")
        return False

    def _lose(self, segment: Segment, first: int, next_offset: int, why: str) -> None:
        """Offsets that should be at the end of the segment and are not; those already reported are left out."""
        first = max([first, *(damage.next_offset for damage in self.report.damages if damage.first_offset <= first)])
        if first < next_offset:
            name, size = log_name(segment.base_offset), segment.size
            self._damage(name, size, max(size, segment.mark.position), first, next_offset, why.format(first - 1))

    def _cut(self, segment: Segment, position: int, next_offset: int, why: str) -> None:
        torn = segment.size - position
        self.report.torn_bytes += torn
        self._change(ChangeKind.CUT, log_name(segment.base_offset), why, position, segment.size, next_offset)
        if self._read_only:
            segment.size, segment.next_offset = position, next_offset
        else:
            segment.cut(position, next_offset)

    def _lose_end(self, segments: list[Segment], state: PartitionState, durable_end: int) -> None:
        """Where the log ends before an offset that was durable, readers must meet a fault there and not the end."""
        if segments:
            last, expected = segments[-1], max(durable_end, state.end_offset)
            self._lose(last, last.next_offset, expected, "the end of the log is missing, {} is the last")
        state.end_offset = max([state.end_offset, *(damage.next_offset for damage in self.report.damages)])

    def _damage(self, file: str, position: int, end: int, first: int, next_offset: int, why: str) -> None:
        self.report.damages.append(Damage(join(self._folder, file), position, end, first, next_offset, why))

    # -- after the batches -----------------------------------------------------------------------------------

    def _settle(self, segments: list[Segment], state: PartitionState) -> None:
        """Make durable what was found, and say so: a record that was read once must not vanish at the next crash."""
        if self.report.damages:
            return  # nothing is written to a damaged partition until its owner decides
        for segment in segments[:-1]:
            if segment.mark.position != segment.size:
                segment.activate()
                segment.write_again()
                seal_segment(segment, segment.reach())
            elif not segment.index_is_sealed:
                self._change(ChangeKind.DERIVED, index_name(segment.base_offset), "rebuilt")
                segment.save_index(sealed=True)
        active = segments[-1]
        active.activate()
        if active.mark.position != active.size or not active.data_bytes:
            active.write_again()
            active.sync(active.reach())
        # Also where the mark agrees: a process killed in a truncation leaves a length that is seen and not durable.
        active.sync_file()
        self._remove_strays()
        self._disk.sync_folder(self._folder)
        # Before the checkpoint: recovery believes the index file up to the offset of the checkpoint.
        active.save_index(sealed=False)
        self._slots.save(encode_image(state.image()), copies=2 if self.report.changes or self._intended else 1)

    def _remove_strays(self) -> None:
        """Files beside a segment that is not there: its creation, or its removal, was not finished."""
        names = self._disk.names(self._folder)
        for name in names:
            stem, dot, suffix = name.partition(".")
            if dot + suffix in (_STATE, _INDEX) and stem.isdigit() and stem + _LOG not in names:
                self._change(ChangeKind.DERIVED, name, "belongs to no segment; removed")
                self._disk.remove(join(self._folder, name))


def seal_segment(segment: Segment, reached: Mark) -> None:
    """Make a full segment durable with its mark and its index, and let go of its writer."""
    segment.sync(reached)
    segment.sync_file()
    segment.save_index(sealed=True)
    segment.retire()


def bases_of(names: Sequence[str], suffix: str) -> list[int]:
    """The base offsets of the files of one kind, ascending. A stranger's file is none of ours, whatever it ends with."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if len(stem) == BASE_DIGITS and stem.isascii() and stem.isdigit())


def swap_name(base: int) -> str:
    return f"{base:020d}{SWAP}"


def segment_names(names: Sequence[str], swaps: Mapping[int, int]) -> dict[int, str]:
    """Base offset → name of each segment's file, ascending, as if the rewrites `swaps` (base → next offset) had taken
    their place."""
    found = {base: log_name(base) for base in bases_of(names, _LOG)}
    for base, next_offset in swaps.items():
        for inner in [other for other in found if base < other < next_offset]:
            del found[inner]
        found[base] = swap_name(base)
    return dict(sorted(found.items()))


def check_swap(file: File, identity: Identity, base: int, epochs: EpochHistory | None) -> int:
    """The offset after the last one of a rewrite that is whole; `BadHead` or `BadBatch` if it is not."""
    _, mark = read_head(file.read_at(DATA_START, 0), identity, base)
    end, offset = DATA_START, base
    for found in walk(file, DATA_START, file.size(), base, epochs=epochs):
        end, offset = found.position + found.header.size_bytes, found.header.next_offset
    if mark != Mark(end, offset):
        raise BadBatch(end, offset, f"its durable mark is {mark}")
    return offset


def finish_swap(disk: Disk, folder: str, base: int, next_offset: int) -> None:
    """Put the whole file `<base>.swap`, which holds offsets [base, next_offset), in the place of every segment of these."""
    names = disk.names(folder)
    for inner in reversed(bases_of(names, _LOG)):
        if base < inner < next_offset:
            for part in (state_name(inner), index_name(inner), log_name(inner)):
                if part in names:
                    disk.remove(join(folder, part))
    disk.rename(join(folder, swap_name(base)), join(folder, log_name(base)))
    disk.sync_folder(folder)
