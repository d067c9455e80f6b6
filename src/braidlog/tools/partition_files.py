"""What lies in a partition's folder: names sorted into kinds, heads and checkpoints read, nothing decided yet.

Knows: file names, the heads and marks of segments, slots, snapshots, indexes. Refuses to know: batches.
Invariant: whatever is in the folder, reading it raises for the disk's own errors only; what does not hold becomes a sentence.
"""

import contextlib
import re
from collections.abc import Iterable

import msgspec

from braidlog.codec.crc import crc32c
from braidlog.model.errors import StorageFault
from braidlog.storage.epochs import EpochHistory
from braidlog.storage.files import Disk, File, join, read_whole
from braidlog.storage.head import (
    DATA_START,
    MAGIC,
    VERSION,
    BadHead,
    Identity,
    Mark,
    SegmentHead,
    index_name,
    read_head,
    read_mark,
    state_name,
)
from braidlog.storage.index import Entry, SparseIndex
from braidlog.storage.recovery import STATE_MAGIC, SWAP, check_swap, segment_names, swap_name
from braidlog.storage.slots import SlotPair, unpack_slot
from braidlog.storage.state import NOTHING_TO_CUT, StateImage, decode_image
from braidlog.storage.walk import BadBatch

_NAME = re.compile(r"(\d{20})(\.log|\.idx|\.state|\.cleaned|\.swap)")
_SLOTS = ("state.a", "state.b")
_GENERATIONS_TRIED = 32


class SegmentFile(msgspec.Struct, kw_only=True):
    """A segment as its first 128 bytes and its name tell it. `head` is a stand-in where `head_fault` says why."""

    base_offset: int
    name: str
    size: int
    head: SegmentHead
    mark: Mark | None
    head_fault: str | None = None
    is_foreign: bool = False


class IndexFile(msgspec.Struct):
    entries: list[Entry]
    seal: Entry | None
    fault: str | None


class PartitionFiles:
    """One look into one folder."""

    def __init__(self, disk: Disk, folder: str, identity: Identity) -> None:
        self.disk = disk
        self.folder = folder
        self.identity = identity
        self.refusals: list[tuple[str, str]] = []
        """(file, why) of what another version wrote: not ours to judge."""
        names = [name for name in disk.names(folder) if not disk.is_folder(join(folder, name))]
        matches = {name: match for name in names if (match := _NAME.fullmatch(name))}
        self.strangers = [name for name in names if name not in matches and name not in _SLOTS]
        self._bases: dict[str, list[int]] = {}
        for match in matches.values():
            self._bases.setdefault(match[2], []).append(int(match[1]))
        self.indexes = {base: self._read_index_head(base) for base in self._of(".idx")}
        self.slot_faults: dict[str, str] = {}
        self.images = self._read_slots()
        self.snapshot_faults: dict[int, str] = {}
        self.snapshots = self._read_snapshots()
        self.segments = self._read_segments()
        self.data_bytes = sum(file.size for file in self.segments)

    def _of(self, suffix: str) -> list[int]:
        return sorted(self._bases.get(suffix, []))

    def open(self, name: str) -> File:
        return self.disk.open(join(self.folder, name), writable=False)

    def read(self, name: str) -> bytes:
        return read_whole(self.disk, join(self.folder, name))

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _read_slots(self) -> list[StateImage]:
        """The whole checkpoints, newest first."""
        pair = SlotPair(self.disk, self.folder, "state", STATE_MAGIC)
        images = []
        for slot in pair.load():
            try:
                images.append(decode_image(slot.payload))
            except StorageFault as fault:
                self.refusals.append((slot.name, str(fault)))
        self.slot_faults.update(pair.all_faults())
        return images

    def _read_snapshots(self) -> dict[int, StateImage]:
        found = {}
        for base in self._of(".state"):
            try:
                image = decode_image(unpack_slot(STATE_MAGIC, state_name(base), self.read(state_name(base))).payload)
            except ValueError as error:
                self.snapshot_faults[base] = str(error)
                continue
            except StorageFault as fault:
                self.refusals.append((state_name(base), str(fault)))
                continue
            if image.end_offset == base:
                found[base] = image
            else:
                self.snapshot_faults[base] = f"it is the state at offset {image.end_offset}, not at {base}"
        return found

    @property
    def newest(self) -> StateImage | None:
        return self.images[0] if self.images else None

    @property
    def truncate_to(self) -> int | None:
        newest = self.newest
        return None if newest is None or newest.truncate_to == NOTHING_TO_CUT else newest.truncate_to

    @property
    def checkpoint_end(self) -> int:
        """Everything below was durable when the newest checkpoint was written."""
        if self.newest is None:
            return 0
        return self.newest.end_offset if self.truncate_to is None else self.truncate_to

    # -- segments --------------------------------------------------------------------------------------------

    def _read_segments(self) -> list[SegmentFile]:
        """The segments as they will be when interrupted rewrites have taken their place."""
        epochs = None if self.newest is None else EpochHistory(self.newest.epochs)
        swaps: dict[int, int] = {}
        for base in self._of(SWAP):
            file = self.open(swap_name(base))
            with contextlib.suppress(BadHead, BadBatch):  # a rewrite that is not whole takes nobody's place
                swaps[base] = check_swap(file, self.identity, base, epochs)
            file.close()
        names = segment_names(self.disk.names(self.folder), swaps)
        return [self.read_segment(base, name) for base, name in names.items()]

    def read_segment(self, base: int, name: str) -> SegmentFile:
        file = self.open(name)
        try:
            size, data = file.size(), file.read_at(DATA_START, 0)
        finally:
            file.close()
        try:
            head, mark = read_head(data, self.identity, base)
        except BadHead as bad:
            return self._read_broken_head(base, name, size, data, bad)
        return SegmentFile(base_offset=base, name=name, size=size, head=head, mark=mark)

    def _read_broken_head(self, base: int, name: str, size: int, data: bytes, bad: BadHead) -> SegmentFile:
        version, generation = int.from_bytes(data[8:10], "big"), int.from_bytes(data[12:16], "big")
        holds = len(data) == DATA_START and crc32c(data[:60]) == int.from_bytes(data[60:64], "big")
        topic_id, partition, named = data[16:32], int.from_bytes(data[32:36], "big"), int.from_bytes(data[40:48], "big")
        if holds and data.startswith(MAGIC) and version != VERSION:
            self.refusals.append((name, f"the segment has version {version}, this one reads {VERSION}"))
        likely = [generation, *range(_GENERATIONS_TRIED)]
        if base in self.indexes:
            likely.insert(0, self.indexes[base])
        marks = ((tried, read_mark(data, base, tried)) for tried in likely)
        generation, mark = next(((tried, mark) for tried, mark in marks if mark is not None), (max(likely[:2]), None))
        created_ms = int.from_bytes(data[48:56], "big") if holds else 0
        return SegmentFile(
            base_offset=base,
            name=name,
            size=size,
            head=SegmentHead(self.identity, base, created_ms, generation if generation < 2**31 else 0),
            mark=mark,
            head_fault=str(bad),
            is_foreign=holds and (Identity(topic_id, partition), named) != (self.identity, base),
        )

    # -- indexes ---------------------------------------------------------------------------------------------

    def _read_index_head(self, base: int) -> int:
        """The generation an index says it describes."""
        return int.from_bytes(self.read(index_name(base))[12:16], "big")

    def read_index(self, base: int, generation: int) -> IndexFile:
        index = SparseIndex(base, generation, 1)
        file = self.open(index_name(base))
        try:
            fault = index.load(file)
        finally:
            file.close()
        return IndexFile([index.entry(number) for number in range(len(index))], index.end, fault)

    def orphans(self, bases: Iterable[int]) -> list[str]:
        """Indexes and snapshots that belong to none of these segments."""
        kept = set(bases)
        return [index_name(b) for b in self._of(".idx") if b not in kept] + [
            state_name(b) for b in self._of(".state") if b not in kept
        ]

    def furthest_offset(self) -> int:
        """Every offset below was given out durably, and none may be given out again.

        Snapshots and index entries may run ahead of a sync that never returned, so a seal counts and they do not; but where
        no checkpoint is left, which no crash does, whatever hints at an offset is better than giving it out twice.
        """
        if self.truncate_to is not None:
            return self.truncate_to
        known = [self.checkpoint_end]
        known += [file.mark.next_offset for file in self.segments if file.mark is not None and not file.is_foreign]
        here = {file.base_offset for file in self.segments}
        for base, generation in self.indexes.items():
            if base not in here:
                index = self.read_index(base, generation)
                hints = [entry.offset + 1 for entry in index.entries] if self.newest is None else []
                known += [*hints, 0 if index.seal is None else index.seal.offset]
        if self.newest is None:
            known += self._of(".state")
        return max(known)
