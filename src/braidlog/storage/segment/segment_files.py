"""Read and write the files of one segment: their names, the header and mark of the log file, the sparse index.

File `<base offset, 20 digits>.log`:

     0  magic        8  "BRAIDSEG"
     8  version      u16
    10  unused       u16
    12  generation   u32  0, plus one each time compaction or repair rewrites the segment
    16  topic id    16
    32  partition    u32
    36  unused       u32
    40  base offset  i64
    48  created_ms   i64
    56  unused       u32
    60  crc          u32  CRC-32C of bytes 0..60
    64  mark: position     u64  everything below was synced by a sync that had returned
    72  mark: next offset  i64
    80  mark: crc          u32  CRC-32C of bytes 64..80, seeded with the header's
    84  unused      44
   128  batches

The mark is rewritten in place after each sync and becomes durable with the next one. It lies in one sector, so it is
never torn. Below the mark recovery treats a bad batch as damage; above it, as an incomplete write.

The index has an entry about every `index_interval_bytes`: a batch's offset, its position, and the latest timestamp
before it. An entry is a hint that was true when it was written. Each carries a checksum and the generation of its
segment file; invalid entries are dropped, and the segment is scanned from there.

File `<base offset>.idx`:                          Entry:
     0  magic       8  "BRAIDIDX"                       0  offset         i64
     8  version     u16                                 8  timestamp_ms   i64  latest of all batches before
    10  unused      u16                                16  position       u32  high bit: the segment ends here
    12  generation  u32  of the segment file           20  crc            u32  CRC-32C of bytes 0..20, seeded by the head
    16  base offset i64
    24  crc         u32  CRC-32C of bytes 0..24
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from braidlog.codec.crc import crc32c
from braidlog.storage.files import Disk, File, join
from braidlog.storage.recovery.damage import DamageKind

MAGIC = b"BRAIDSEG"
VERSION = 1
DATA_START = 128
MARK_AT = 64
_HEAD = struct.Struct(">8sHHI16sIIqqI")
_CRC = struct.Struct(">I")
_MARK = struct.Struct(">Qq")
_GENERATIONS_TRIED = 1024
BASE_DIGITS = 20
LOG = ".log"
INDEX = ".idx"
STATE = ".state"
CLEANED = ".cleaned"
SWAP = ".swap"
DAMAGED = ".damaged"


class Identity(NamedTuple):
    """The partition that a segment belongs to: detects a file in the wrong folder."""

    topic_id: bytes
    partition: int


class Mark(NamedTuple):
    """How far the file is durable."""

    position: int
    next_offset: int


class SegmentHead(NamedTuple):
    identity: Identity
    base_offset: int
    created_ms: int
    generation: int


class BadHead(Exception):  # noqa: N818 - a finding, like BadBatch
    """The first 64 bytes are not the header of this segment.

    `mark` is the durable mark if it is still valid, `generation` the one that validates it.
    """

    def __init__(self, why: str, mark: Mark | None, generation: int = 0, kind: DamageKind = DamageKind.HEAD) -> None:
        super().__init__(why)
        self.mark = mark
        self.generation = generation
        self.kind = kind


def is_damaged_copy(name: str, partition: int) -> bool:
    """Return whether a folder name is that of a kept damaged copy of this partition."""
    return name.startswith(f"{partition:04d}.") and name.endswith(DAMAGED)


def log_name(base_offset: int) -> str:
    return f"{base_offset:020d}{LOG}"


def index_name(base_offset: int) -> str:
    return f"{base_offset:020d}{INDEX}"


def state_name(base_offset: int) -> str:
    return f"{base_offset:020d}{STATE}"


def swap_name(base_offset: int) -> str:
    return f"{base_offset:020d}{SWAP}"


def bases_of(names: Sequence[str], suffix: str) -> list[int]:
    """Return the base offsets of the files of one kind, ascending. Ignores other files with the same suffix."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if len(stem) == BASE_DIGITS and stem.isascii() and stem.isdigit())


def stray_names(names: Sequence[str], kept: Container[int]) -> list[str]:
    """Return the index and snapshot files without a segment among `kept`."""
    kinds = ((index_name, INDEX), (state_name, STATE))
    return [name_of(base) for name_of, suffix in kinds for base in bases_of(names, suffix) if base not in kept]


def segment_names(names: Sequence[str], swaps: Mapping[int, int]) -> dict[int, str]:
    """Map base offsets to segment file names, ascending.

    The rewrites `swaps` (base → next offset) count as being in place.
    """
    found = {base: log_name(base) for base in bases_of(names, LOG)}
    for base, next_offset in swaps.items():
        for inner in [other for other in found if base < other < next_offset]:
            del found[inner]
        found[base] = swap_name(base)
    return dict(sorted(found.items()))


def pack_head(head: SegmentHead) -> bytes:
    body = _HEAD.pack(MAGIC, VERSION, 0, head.generation, *head.identity, 0, head.base_offset, head.created_ms, 0)
    return body + _CRC.pack(crc32c(body))


def pack_mark(mark: Mark, seed: int) -> bytes:
    body = _MARK.pack(*mark)
    return body + _CRC.pack(crc32c(body, seed))


def mark_seed(base_offset: int, generation: int) -> int:
    """Compute the checksum seed that ties a mark to its file, so that a stray sector or stale copy is invalid."""
    return crc32c(struct.pack(">qI", base_offset, generation))


def read_mark(data: bytes, base_offset: int, generation: int) -> Mark | None:
    body = data[MARK_AT : MARK_AT + _MARK.size]
    crc = data[MARK_AT + _MARK.size : MARK_AT + _MARK.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != crc32c(body, mark_seed(base_offset, generation)):
        return None
    return Mark._make(_MARK.unpack(body))


def read_generation(data: bytes) -> int:
    """Return the generation stated by the header, valid or not."""
    return int.from_bytes(data[12:16], "big")


def read_head(data: bytes, identity: Identity, base_offset: int) -> tuple[SegmentHead, Mark | None]:
    """Return the header and the mark, None if invalid; raise `BadHead` if this is not the expected segment."""
    if len(data) < DATA_START:
        generation, mark = _search_mark(data, base_offset, 0)
        raise BadHead(f"the file has {len(data)} bytes, its head alone has {DATA_START}", mark, generation)
    fields = _HEAD.unpack_from(data)
    magic, version, unused_a, generation, topic_id, partition, unused_b, base, created_ms, unused_c = fields
    head = SegmentHead(Identity(topic_id, partition), base, created_ms, generation)
    why, kind = None, DamageKind.HEAD
    if _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(data[: _HEAD.size]):
        why = "the head's checksum does not hold"
    elif magic != MAGIC or unused_a or unused_b or unused_c:
        why = "it is not the head of a segment"
    elif version != VERSION:
        why, kind = f"its head has version {version}; this version of braidlog reads {VERSION}", DamageKind.VERSION
    elif head.identity != identity or head.base_offset != base_offset:
        where = f"topic {topic_id.hex()} partition {partition} base {base}"
        why, kind = f"it is the segment of {where}, in a wrong place", DamageKind.FOREIGN
    elif any(data[MARK_AT + _MARK.size + _CRC.size : DATA_START]):
        why = "bytes that must be zero are not"
    if why is not None:
        generation, mark = _search_mark(data, base_offset, generation)
        raise BadHead(why, mark, generation, kind)
    return head, read_mark(data, base_offset, generation)


def _search_mark(data: bytes, base_offset: int, generation: int) -> tuple[int, Mark | None]:
    """Find the mark of a file with a lost header, and the generation that validates it (a small number)."""
    for tried in (generation, *range(_GENERATIONS_TRIED)):
        mark = read_mark(data, base_offset, tried)
        if mark is not None:
            return tried, mark
    return 0, None


INDEX_MAGIC = b"BRAIDIDX"
INDEX_VERSION = 1
NO_TIMESTAMP = -1
_INDEX_HEAD = struct.Struct(">8sHHIq")
_ENTRY = struct.Struct(">qqI")
HEAD_BYTES = _INDEX_HEAD.size + _CRC.size
ENTRY_BYTES = _ENTRY.size + _CRC.size
_SEALED = 1 << 31


class Entry(NamedTuple):
    offset: int
    position: int
    timestamp_ms: int


class SparseIndex:
    """The index in memory: parallel arrays, ascending.

    `verified[i]`: the bytes from entry i to the next were verified.
    """

    def __init__(self, base_offset: int, generation: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.generation = generation
        self._interval_bytes = interval_bytes
        self._offsets = array("q")
        self._positions = array("q")
        self._timestamps = array("q")
        self.verified = bytearray()
        self.saved = 0
        self.is_stale = False
        self.end: Entry | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    def note(self, offset: int, position: int, timestamp_before_ms: int, *, verified: bool) -> None:
        """Register each batch, in order; adds an entry when the last one is far enough behind."""
        if not self._positions or position - self._positions[-1] >= self._interval_bytes:
            self._offsets.append(offset)
            self._positions.append(position)
            self._timestamps.append(timestamp_before_ms)
            self.verified.append(verified)

    def split(self, offset: int, position: int, timestamp_before_ms: int) -> None:
        """Add an entry where batches resume behind damage, so that they can be reached."""
        number = bisect_left(self._positions, position)
        if number < len(self) and self._positions[number] == position:
            return
        self._offsets.insert(number, offset)
        self._positions.insert(number, position)
        self._timestamps.insert(number, timestamp_before_ms)
        self.verified.insert(number, False)
        self.is_stale |= self.saved > number
        self.saved = min(self.saved, number)

    def forget_checks(self) -> None:
        """Mark all intervals as unverified."""
        self.verified = bytearray(len(self))

    def seal(self, end: Entry) -> None:
        self.end = end

    def entry(self, number: int) -> Entry:
        return Entry(self._offsets[number], self._positions[number], self._timestamps[number])

    def floor_offset(self, offset: int) -> int:
        """Return the number of the last entry at or before `offset`; 0 without one."""
        return max(bisect_right(self._offsets, offset) - 1, 0)

    def floor_position(self, position: int) -> int:
        return max(bisect_right(self._positions, position) - 1, 0)

    def first_unverified(self, number: int, end: int) -> int:
        """Return the first unverified entry from `number` on before position `end`, or -1."""
        return self.verified.find(0, number, bisect_left(self._positions, end))

    def first_with_time(self, timestamp_ms: int) -> int:
        """Return the entry from which to scan for the first batch with a timestamp of at least `timestamp_ms`."""
        return max(bisect_left(self._timestamps, timestamp_ms) - 1, 0)

    def interval_end(self, number: int, size: int) -> int:
        """Return the position where the interval of entry `number` ends, in a segment of `size` bytes."""
        return self._positions[number + 1] if number + 1 < len(self._positions) else size

    def truncate(self, position: int) -> None:
        """Drop entries at or beyond `position`."""
        keep = bisect_left(self._positions, position)
        self.is_stale |= self.saved > keep or self.end is not None
        del self._offsets[keep:], self._positions[keep:], self._timestamps[keep:], self.verified[keep:]
        self.saved = min(self.saved, keep)
        self.end = None

    def unsaved(self, upto: int) -> bytes:
        """Return the bytes to write to the file: the header, then each entry since the last save, then the seal."""
        head = self._head()
        seed = crc32c(head)
        parts = [] if self.saved else [head]
        parts += [_pack(self.entry(number), 0, seed) for number in range(self.saved, upto)]
        if self.end is not None:
            parts.append(_pack(self.end, _SEALED, seed))
        return b"".join(parts)

    def save_position(self) -> int:
        """Return the position of `unsaved` in the file."""
        return HEAD_BYTES + self.saved * ENTRY_BYTES if self.saved else 0

    def _head(self) -> bytes:
        head = _INDEX_HEAD.pack(INDEX_MAGIC, INDEX_VERSION, 0, self.generation, self.base_offset)
        return head + _CRC.pack(crc32c(head))

    def save(self, disk: Disk, path: str, count: int | None = None) -> None:
        """Write the unsaved entries, truncate stale ones, and sync the file.

        With `count`, save only that many entries: another thread may add more during the call.
        """
        upto = len(self) if count is None else count
        data = self.unsaved(upto)
        if not data and not self.is_stale:
            return
        file = disk.open(path, writable=True) if disk.exists(path) else disk.create(path)
        try:
            start = self.save_position()
            file.write_at(data, start)
            file.truncate(start + len(data))
            file.sync()
        finally:
            file.close()
        self.is_stale = False
        self.saved = upto  # the next save overwrites the seal

    def load(self, file: File) -> str | None:
        """Read the valid entries. Return why the rest is invalid, or None."""
        fault = self._load(file.read_at(file.size(), 0))
        self.is_stale = fault is not None
        return fault

    def _load(self, data: bytes) -> str | None:
        head = self._head()
        if data[:HEAD_BYTES] != head:
            return "its head is not that of this segment"
        seed = crc32c(head)
        previous = Entry(-1, -1, NO_TIMESTAMP)
        for start in range(HEAD_BYTES, len(data), ENTRY_BYTES):
            raw = data[start : start + ENTRY_BYTES]
            if len(raw) < ENTRY_BYTES or _CRC.unpack_from(raw, _ENTRY.size)[0] != crc32c(raw[: _ENTRY.size], seed):
                return f"entry {len(self)} does not hold"
            offset, timestamp_ms, position = _ENTRY.unpack_from(raw)
            entry = Entry(offset, position & ~_SEALED, timestamp_ms)
            if entry.position <= previous.position and not position & _SEALED:
                return f"entry {len(self)} goes backwards"
            if position & _SEALED:
                self.end = entry
                return None if start + ENTRY_BYTES == len(data) else "bytes follow its seal"
            self._offsets.append(entry.offset)
            self._positions.append(entry.position)
            self._timestamps.append(entry.timestamp_ms)
            self.verified.append(False)
            self.saved += 1
            previous = entry
        return None

    def read_end(self, head: bytes, raw: bytes) -> Entry | None:
        """Decode the seal from the file's header and its last entry; None if invalid or if the index is not sealed."""
        if head != self._head() or _CRC.unpack_from(raw, _ENTRY.size)[0] != crc32c(raw[: _ENTRY.size], crc32c(head)):
            return None
        offset, timestamp_ms, position = _ENTRY.unpack_from(raw)
        return Entry(offset, position & ~_SEALED, timestamp_ms) if position & _SEALED else None


def durable_end(disk: Disk, folder: str, swaps: Iterable[int], saved_end: int | None) -> int:
    """Return the offset below which every offset was assigned durably, so none may be assigned again.

    `saved_end` is the log end in the newest checkpoint; `swaps` has the bases of rewrites that are about to replace
    segments. The seal of an index without a segment counts. Snapshots and index entries do not: they may be ahead of
    a sync that never returned. Without a checkpoint, which no crash causes, every hint counts: that is better than
    assigning an offset twice.
    """
    names = disk.names(folder)
    here = {*bases_of(names, LOG), *swaps}
    orphans = [base for base in bases_of(names, INDEX) if base not in here]
    vouched = _vouched_end(disk, folder, orphans, hints=saved_end is None)
    return max([vouched, *bases_of(names, STATE)]) if saved_end is None else max(vouched, saved_end)


def _vouched_end(disk: Disk, folder: str, orphans: Iterable[int], *, hints: bool) -> int:
    """Return the end offset that the indexes of missing segments prove, by their seals.

    With `hints` their entries count too.

    Each index is read with the generation that it states.
    """
    end = 0
    for base in orphans:
        file = disk.open(join(folder, index_name(base)), writable=False)
        index = SparseIndex(base, int.from_bytes(file.read_at(HEAD_BYTES, 0)[12:16], "big"), 1)
        index.load(file)
        file.close()
        entries = [index.entry(number).offset + 1 for number in range(len(index))] if hints else []
        end = max([end, *entries, 0 if index.end is None else index.end.offset])
    return end


def _pack(entry: Entry, flags: int, seed: int) -> bytes:
    body = _ENTRY.pack(entry.offset, entry.timestamp_ms, entry.position | flags)
    return body + _CRC.pack(crc32c(body, seed))
