"""The sparse index of one segment: every so many bytes, where a batch starts and how late the records before it are.

Knows: (offset, position, latest timestamp before it) triples. Refuses to know: batches.
Invariant: an entry is a hint that was true when it was written. Each carries a checksum and the generation of the segment
file it describes; whatever does not hold is dropped, and the segment is walked again from there.

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
from collections.abc import Iterable
from typing import NamedTuple

from braidlog.codec.crc import crc32c
from braidlog.storage.files import Disk, File, join
from braidlog.storage.head import INDEX, LOG, STATE, bases_of, index_name

MAGIC = b"BRAIDIDX"
VERSION = 1
NO_TIMESTAMP = -1
_HEAD = struct.Struct(">8sHHIq")
_ENTRY = struct.Struct(">qqI")
_CRC = struct.Struct(">I")
HEAD_BYTES = _HEAD.size + _CRC.size
ENTRY_BYTES = _ENTRY.size + _CRC.size
_SEALED = 1 << 31


class Entry(NamedTuple):
    offset: int
    position: int
    timestamp_ms: int


class SparseIndex:
    """In memory: parallel arrays, ascending. `verified[i]` tells whether the bytes from entry i to the next were checked."""

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
        """Called for every batch, in order; keeps an entry when the last one is far enough behind."""
        if not self._positions or position - self._positions[-1] >= self._interval_bytes:
            self._offsets.append(offset)
            self._positions.append(position)
            self._timestamps.append(timestamp_before_ms)
            self.verified.append(verified)

    def split(self, offset: int, position: int, timestamp_before_ms: int) -> None:
        """Add an entry where a batch is known to start again behind damage, so that what follows can be reached."""
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
        """What was checked was checked too long ago."""
        self.verified = bytearray(len(self))

    def seal(self, end: Entry) -> None:
        self.end = end

    def entry(self, number: int) -> Entry:
        return Entry(self._offsets[number], self._positions[number], self._timestamps[number])

    def floor_offset(self, offset: int) -> int:
        """Number of the last entry at or before `offset`; the first one if there is none."""
        return max(bisect_right(self._offsets, offset) - 1, 0)

    def floor_position(self, position: int) -> int:
        return max(bisect_right(self._positions, position) - 1, 0)

    def first_unverified(self, number: int, end: int) -> int:
        """Of the entries from `number` on that stand before `end`: the first whose check does not count, -1 without one."""
        return self.verified.find(0, number, bisect_left(self._positions, end))

    def first_with_time(self, timestamp_ms: int) -> int:
        """Number of the entry from which a walk meets the first batch whose latest timestamp reaches `timestamp_ms`."""
        return max(bisect_left(self._timestamps, timestamp_ms) - 1, 0)

    def interval_end(self, number: int, size: int) -> int:
        """Position where the interval of entry `number` ends in a segment of `size` bytes."""
        return self._positions[number + 1] if number + 1 < len(self._positions) else size

    def cut(self, position: int) -> None:
        """Forget entries at or beyond `position`."""
        keep = bisect_left(self._positions, position)
        self.is_stale |= self.saved > keep or self.end is not None
        del self._offsets[keep:], self._positions[keep:], self._timestamps[keep:], self.verified[keep:]
        self.saved = min(self.saved, keep)
        self.end = None

    def unsaved(self, upto: int) -> bytes:
        """The bytes to add to the file: the head first, then each entry since the last call, then the seal."""
        head = self._head()
        seed = crc32c(head)
        parts = [] if self.saved else [head]
        parts += [_pack(self.entry(number), 0, seed) for number in range(self.saved, upto)]
        if self.end is not None:
            parts.append(_pack(self.end, _SEALED, seed))
        return b"".join(parts)

    def save_position(self) -> int:
        """Where `unsaved` belongs in the file."""
        return HEAD_BYTES + self.saved * ENTRY_BYTES if self.saved else 0

    def _head(self) -> bytes:
        head = _HEAD.pack(MAGIC, VERSION, 0, self.generation, self.base_offset)
        return head + _CRC.pack(crc32c(head))

    def save(self, disk: Disk, path: str, count: int | None = None) -> None:
        """Write what is not in the file yet, cut off what no longer holds, and sync it.

        With `count`, only the first so many entries: more may be added meanwhile, from another thread.
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
        self.saved = upto  # the seal is written again by whoever saves next, over itself

    def load(self, file: File) -> str | None:
        """Read the entries that hold. Return why the rest does not, or None if all do."""
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
        """The seal, from the file's head and its last entry; None if they do not hold or the index is not sealed."""
        if head != self._head() or _CRC.unpack_from(raw, _ENTRY.size)[0] != crc32c(raw[: _ENTRY.size], crc32c(head)):
            return None
        offset, timestamp_ms, position = _ENTRY.unpack_from(raw)
        return Entry(offset, position & ~_SEALED, timestamp_ms) if position & _SEALED else None


def durable_end(disk: Disk, folder: str, swaps: Iterable[int], saved_end: int | None) -> int:
    """Every offset below was given out durably, and none may be given out again. `saved_end` is the end of the log in its newest
    checkpoint, `swaps` has the bases of rewrites that take their place.

    Snapshots and index entries may run ahead of a sync that never returned, so the seal of an index whose segment is gone counts
    and they do not; but where no checkpoint is left, which no crash does, whatever hints at an offset is better than giving it
    out twice.
    """
    names = disk.names(folder)
    here = {*bases_of(names, LOG), *swaps}
    orphans = [base for base in bases_of(names, INDEX) if base not in here]
    vouched = _vouched_end(disk, folder, orphans, hints=saved_end is None)
    return max([vouched, *bases_of(names, STATE)]) if saved_end is None else max(vouched, saved_end)


def _vouched_end(disk: Disk, folder: str, orphans: Iterable[int], *, hints: bool) -> int:
    """The offset before which indexes whose segments are gone say that there were records: by their seals; with `hints` by
    their entries too. The generation is the one that each gives."""
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
