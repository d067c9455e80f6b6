"""Opens a store: loads the newest snapshot, then replays the log after it.

Does not handle: execution of operations.
Invariants: a second recovery changes nothing; the recovered state is durable on return. A fault in anything that
had been durable is damage: it is never truncated or overwritten. Checksums, marks and heads alone show where the
log continues after damage, and how many mutations are lost; bytes that look like an entry never do. Keys that the
lost mutations may have changed are in doubt (damage.py); all others are served. If the continuation is unknown,
recovery raises a `StorageFault` with the position. Only bytes after the last file's mark can be a torn tail, or
preallocated zeros (storage/segment/preallocation.py), which are not data.

    <folder>/store.a store.b                 the manifest (kv/wal/wal.py)                        a two-copy file
             <sequence>.snapshot             (kv/wal/snapshot.py)
             <base>.wal                      (kv/wal/wal.py), those after the snapshot and perhaps some before it
             <base>.wal.damaged              a damaged file that a snapshot has replaced; only an operator removes it
             <base>.wal beyond the manifest  a roll that was never finished: removed
             <sequence>.snapshot.new         a snapshot that was never finished: removed
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from braidlog.kv.engine.hybrid_clock import HybridClock
from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.engine.settings import Eviction, KeyValueSettings
from braidlog.kv.engine.values import quoted
from braidlog.kv.wal import snapshot as snapshots
from braidlog.kv.wal.damage import SEARCHED_BYTES_MAX, Doubt, mended, mended_entry
from braidlog.kv.wal.file_header import HEAD_BYTES, number_in, unpack_head
from braidlog.kv.wal.wal import (
    DATA_START,
    MAGIC,
    MANIFEST_MAGIC,
    MANIFEST_STEM,
    MARK_AT,
    MARK_END,
    SUFFIX,
    Manifest,
    Mark,
    Opened,
    Piece,
    Syncer,
    Wal,
    WalHead,
    create_wal,
    pack_mark,
    save_manifest,
    unpack_mark,
    unpack_wal_head,
    wal_name,
)
from braidlog.kv.wal.wal_entries import BadEntry, Entry, walk_entries
from braidlog.model.errors import ProtocolError, StorageFault
from braidlog.storage.files import Disk, File, join, parent
from braidlog.storage.segment.preallocation import written_end
from braidlog.storage.two_copy_file import TwoCopyFile

REWRITE_BYTES = 1024 * 1024

Replayed = Callable[[int, HybridClock, Entry, Keyspace], None]
"""replayed(sequence, clock at its stamp, entry, keyspace): called after an entry was applied."""


class Recovered(NamedTuple):
    keyspace: Keyspace
    clock: HybridClock
    wal: Wal
    snapshot: snapshots.SnapshotHead | None
    snapshot_bytes: int
    notes: list[str]
    damages: list[str]
    """Descriptions of the losses."""
    doubt: Doubt


class _Reading:
    """A log file during its replay."""

    def __init__(self, file: File, name: str, base: int, follower: int | None) -> None:
        self.file = file
        self.name = name
        self.base = base
        self.follower = follower
        """First sequence of the next file."""
        self.head: WalHead | None = None
        self.mark: Mark | None = None
        self.is_mended = False
        """The head or the mark was repaired in memory and differs from the disk."""
        self.is_damaged = False
        self.position = DATA_START
        self.sequence = self.marked = base - 1
        """Sequence of the last entry, and of the last entry below the mark."""


def _is_head(magic: bytes, data: bytes) -> bool:
    try:
        unpack_head(magic, data)
    except ProtocolError:
        return False
    return True


def _is_mark(head: bytes, mark: bytes) -> bool:
    return unpack_mark(head[:MARK_AT] + mark) is not None


class Recovery:
    """Opens one folder."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        node: bytes,
        settings: KeyValueSettings,
        *,
        now_ms: int,
        replayed: Replayed,
        syncer: Syncer,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._node = node
        self._settings = settings
        self._now_ms = now_ms
        self._replayed = replayed
        self._syncer = syncer
        self._manifest = TwoCopyFile(disk, folder, MANIFEST_STEM, MANIFEST_MAGIC)
        self._clock = HybridClock(node)
        self.keyspace = self._empty()
        self._sequence = 0
        self._snapshot: snapshots.SnapshotHead | None = None
        self._snapshot_bytes = 0
        self.notes: list[str] = []
        self.damages: list[str] = []
        self._doubt = Doubt(self.keyspace)

    def run(self) -> Recovered:
        self._disk.make_folder(self._folder)
        # On every start: a killed process may have created the names without syncing them.
        self._disk.sync_folder(parent(self._folder))
        manifest = self._open_manifest()
        self._remove_unfinished(manifest)
        self._load_snapshot()
        wal = self._replay(manifest)
        if not self._doubt:  # the damaged keys have been set since
            self.notes, self.damages = self.notes + self.damages, []
        return Recovered(
            self.keyspace,
            self._clock,
            wal,
            self._snapshot,
            self._snapshot_bytes,
            self.notes,
            self.damages,
            self._doubt,
        )

    def _empty(self) -> Keyspace:
        return Keyspace(recency=self._settings.eviction is Eviction.LRU)

    # -- the manifest ----------------------------------------------------------------------------------------

    def _open_manifest(self) -> Manifest:
        found = self._manifest.load()
        self.notes += [f"{name}: {fault}" for name, fault in self._manifest.faults.items()]
        if not found:
            return self._begin()
        try:
            manifest = msgspec.json.decode(found[0].payload, type=Manifest)
        except msgspec.MsgspecError as error:
            raise StorageFault(f"the store's manifest does not decode: {error}", self._folder) from error
        if manifest.node != self._node.hex():
            raise StorageFault(f"the store belongs to node {manifest.node}, this is {self._node.hex()}", self._folder)
        self._manifest.even_out(found)
        return manifest

    def _begin(self) -> Manifest:
        """Create a new store, or complete an interrupted creation. Raise if only the manifest is lost."""
        if len(self._manifest.faults) > 1 or self._holds_something():
            why = "; ".join(self.notes) or "both files are missing"
            raise StorageFault(f"the store's manifest is lost, and there are mutations: {why}", self._folder)
        for name in self._names(SUFFIX):
            self._remove(name)
        create_wal(self._disk, self._folder, WalHead(self._node, 1, 0, 0, self._now_ms)).close()
        manifest = Manifest(self._node.hex(), 1)
        save_manifest(self._manifest, manifest)
        return manifest

    def _holds_something(self) -> bool:
        if self._names(snapshots.SUFFIX) or len(self._names(SUFFIX)) > 1:
            return True
        return any(self._size(name) > DATA_START for name in self._names(SUFFIX))

    def _remove_unfinished(self, manifest: Manifest) -> None:
        for name in self._names(snapshots.NEW_SUFFIX):
            self._remove(name)
        for name in self._names(SUFFIX):
            if name > wal_name(manifest.wal_base):
                if self._size(name) > DATA_START:
                    raise StorageFault(f"{name} holds mutations, and the manifest does not know it", self._folder)
                self.notes.append(f"{name}: a roll that was never finished, removed")
                self._remove(name)

    # -- the snapshot ----------------------------------------------------------------------------------------

    def _load_snapshot(self) -> None:
        """Load the newest intact snapshot that the log reaches back to; else the intact parts of the newest."""
        names, logs = self._names(snapshots.SUFFIX), self._names(SUFFIX)
        for name in reversed(names):
            path = join(self._folder, name)
            try:
                head = snapshots.load_snapshot(self._disk, path, self.keyspace.put)
                self._check_snapshot(head, name)
            except StorageFault as fault:
                self.notes.append(str(fault))
                self.keyspace = self._empty()
                continue
            self._use_snapshot(head, name)
            break
        is_newest = not names or (self._snapshot is not None and names[-1] == snapshots.snapshot_name(self._sequence))
        if not is_newest and (not logs or number_in(logs[0]) > self._sequence + 1):
            self._salvage_snapshot(names[-1])
        if not self._doubt:
            self._doubt = Doubt(self.keyspace)

    def _use_snapshot(self, head: snapshots.SnapshotHead, name: str) -> None:
        self._snapshot, self._snapshot_bytes = head, self._size(name)
        self._sequence = head.sequence
        self._clock = HybridClock(self._node, head.wall_ms, head.counter)

    def _salvage_snapshot(self, name: str) -> None:
        """Load the keys of a snapshot's intact blocks; all other keys are in doubt. Without its head, nothing is
        known."""
        keyspace = self._empty()
        file = self._disk.open(join(self._folder, name), writable=False)
        try:
            data = file.read_at(HEAD_BYTES, 0)
            data = data if _is_head(snapshots.MAGIC, data) else mended(data, partial(_is_head, snapshots.MAGIC)) or b""
            head = snapshots.SnapshotHead(*unpack_head(snapshots.MAGIC, data))
            self._check_snapshot(head, name)
            snapshots.load_whole_blocks(file, keyspace.put)
        except (ProtocolError, StorageFault, struct.error):
            return
        finally:
            file.close()
        self.keyspace = keyspace
        self._use_snapshot(head, name)
        self._doubt.add_all(keyspace)
        self.damages.append(
            f"{name}: {len(keyspace)} keys can be read, all others that were not set since are in doubt ({self._why()})"
        )

    def _check_snapshot(self, head: snapshots.SnapshotHead, name: str) -> None:
        if head.node != self._node or name != snapshots.snapshot_name(head.sequence):
            raise StorageFault(f"the snapshot says it is {head.sequence} of node {head.node.hex()}", name)

    # -- the log ---------------------------------------------------------------------------------------------

    def _replay(self, manifest: Manifest) -> Wal:
        names = self._names(SUFFIX)
        if not names or names[-1] != wal_name(manifest.wal_base):
            raise StorageFault(f"{wal_name(manifest.wal_base)} is missing: {self._why()}", self._folder)
        bases = [number_in(name) for name in names]
        sealed: list[Piece] = []
        last, opened = min(bases[0] - 1, self._sequence), None
        for name, base, follower in zip(names, bases, [*bases[1:], None], strict=True):
            if base <= last:
                raise StorageFault(f"{name} follows mutation {last}: a file is missing", self._folder)
            if base > last + 1:
                self._lose(last + 1, base - 1, f"{name}: the log file before it is missing")
            file = self._disk.open(join(self._folder, name), writable=follower is None)
            try:
                reading = _Reading(file, name, base, follower)
                self._read_head(reading)
                self._replay_file(reading)
                last = reading.sequence
                if follower is None:
                    opened = self._make_durable(reading, sealed)
                else:
                    sealed.append(Piece(base, last, reading.position, reading.is_damaged))
            finally:
                if opened is None or opened.file is not file:
                    file.close()
        assert opened is not None
        if last < self._sequence and self._snapshot is not None:
            raise StorageFault(
                f"the log ends with mutation {last}, before its snapshot's {self._snapshot.sequence}", self._folder
            )
        return Wal(self._disk, self._folder, self._manifest, self._settings, opened, sealed, syncer=self._syncer)

    def _why(self) -> str:
        return "; ".join(self.notes) or "a file is lost"

    def _read_head(self, reading: "_Reading") -> None:
        data, path = reading.file.read_at(DATA_START, 0), reading.file.path
        try:
            head = unpack_wal_head(data)
        except ProtocolError as error:
            whole = mended(data[:HEAD_BYTES], partial(_is_head, MAGIC)) if len(data) == DATA_START else None
            if whole is None and reading.follower is None:
                raise StorageFault(f"the log file is damaged: {error}", path) from error
            if whole is None:
                return
            data, reading.is_mended = whole + data[HEAD_BYTES:], True
            head = unpack_wal_head(data)
        if head.node != self._node or reading.base != head.base:
            raise StorageFault(f"the log file says it is {head.base} of node {head.node.hex()}", path)
        reading.head, reading.mark = head, unpack_mark(data)
        if reading.mark is None and (whole := mended(data[MARK_AT:MARK_END], partial(_is_mark, data))) is not None:
            reading.mark, reading.is_mended = unpack_mark(data[:MARK_AT] + whole), True
        if reading.is_mended:
            self.notes.append(f"{reading.name}: one bit of its head was flipped; its checksum says which")

    def _replay_file(self, reading: "_Reading") -> None:
        """Apply the new entries of a file, and find where its entries end."""
        file, mark, follower, size = reading.file, reading.mark, reading.follower, reading.file.size()
        if reading.head is None:
            assert follower is not None
            self._skip_to(reading, Mark(size, follower - 1), "its head is damaged")
            return
        clock = HybridClock(self._node, reading.head.wall_ms, reading.head.counter)
        durable_to = size if follower is not None else None if mark is None else mark.position
        while True:
            try:
                self._replay_entries(reading, clock, size)
                break
            except BadEntry as bad:
                # Without a mark it is unknown whether these bytes were ever durable. In a file with a successor,
                # they were.
                if durable_to is None:
                    raise StorageFault(
                        f"the log is damaged after mutation {reading.sequence}, and so is its mark: {bad}", file.path
                    ) from bad
                if reading.position >= durable_to:
                    # The rest is preallocated zeros.
                    torn = written_end(file, reading.position, size) - reading.position
                    if torn:
                        self.notes.append(f"{reading.name}: a torn tail of {torn} bytes discarded ({bad.why})")
                    break
                self._skip_damage(reading, clock, durable_to, bad.why)
        self._check_end(reading)

    def _replay_entries(self, reading: "_Reading", clock: HybridClock, size: int) -> None:
        file, mark = reading.file, reading.mark
        for entry in walk_entries(file, reading.position, size, clock.wall_ms):
            reading.sequence, reading.position = sequence, _ = reading.sequence + 1, entry.end
            clock.tick(entry.wall_ms)
            if sequence > self._sequence:
                self._apply(sequence, clock, entry, file)
            if mark is not None and entry.end <= mark.position:
                reading.marked = sequence

    def _check_end(self, reading: "_Reading") -> None:
        mark, follower = reading.mark, reading.follower
        if follower is not None and reading.sequence < follower - 1:
            self._skip_to(reading, Mark(reading.position, follower - 1), "the file ends too early")
        elif follower is None and mark is not None and reading.position < mark.position:
            self._skip_to(reading, Mark(reading.position, mark.sequence), "the file ends before its durable mark")
        elif mark is not None and reading.position >= mark.position and reading.marked != mark.sequence:
            raise StorageFault(
                f"the log is damaged: mutation {mark.sequence} ends at byte {mark.position}, "
                f"and it has mutation {reading.marked} there",
                reading.file.path,
            )
        elif follower is not None and reading.sequence >= follower:
            raise StorageFault(f"it has mutation {reading.sequence}, and {follower} begins the next", reading.file.path)

    # -- damage ----------------------------------------------------------------------------------------------

    def _skip_damage(self, reading: "_Reading", clock: HybridClock, durable_to: int, why: str) -> None:
        """Continue after an entry with one flipped bit, else at the position given by a mark or by the next file's
        head."""
        position, mark = reading.position, reading.mark
        entry = mended_entry(
            reading.file.read_at(min(SEARCHED_BYTES_MAX, durable_to - position), position), clock.wall_ms
        )
        if entry is None and mark is not None and position < mark.position:
            reading.marked = mark.sequence
            self._skip_to(reading, mark, why)
        elif entry is None:
            assert reading.follower is not None
            self._skip_to(reading, Mark(reading.file.size(), reading.follower - 1), why)
        else:
            clock.tick(entry.wall_ms)
            end, sequence = position + entry.end, reading.sequence + 1
            reading.position, reading.sequence, reading.is_damaged = end, sequence, True
            if mark is not None and end <= mark.position:
                reading.marked = sequence
            what = f"{reading.name}: one bit flipped in bytes {position} to {end}, mutation {sequence}"
            if sequence <= self._sequence:
                self.notes.append(f"{what}; the snapshot has what was in it")
                return
            self._doubt.add(entry.key)
            self._sequence = sequence
            self._clock.wall_ms, self._clock.counter = clock.wall_ms, clock.counter
            self.damages.append(f"{what}: key {quoted(entry.key)} is in doubt")

    def _skip_to(self, reading: "_Reading", to: Mark, why: str) -> None:
        if to.sequence <= reading.sequence:
            raise StorageFault(f"the log is damaged after mutation {reading.sequence}: {why}", reading.file.path)
        bytes_lost = f"bytes {reading.position} to {to.position} of {reading.name}"
        self._lose(reading.sequence + 1, to.sequence, f"{bytes_lost}: {why}")
        reading.position, reading.sequence, reading.is_damaged = to.position, to.sequence, True

    def _lose(self, first: int, last: int, why: str) -> None:
        """Record that mutations of unknown keys are lost, unless the snapshot includes them."""
        if last <= self._sequence:
            self.notes.append(f"{why}; the snapshot has what was in it")
            return
        first = max(first, self._sequence + 1)
        self.damages.append(f"mutations {first} to {last} are unreadable, all keys not set since are in doubt ({why})")
        self.keyspace, self._sequence = self._empty(), last
        self._doubt.add_all(self.keyspace)

    def _apply(self, sequence: int, clock: HybridClock, entry: Entry, file: File) -> None:
        doubt, key = self._doubt, entry.key
        is_admitted = not doubt or doubt.admits(entry.op, key)
        is_known = is_admitted or doubt.settles(entry.op, key)
        try:
            if is_admitted:
                self.keyspace.apply(entry.op, key, entry.value, entry.ttl_seconds, entry.wall_ms)
        except (ProtocolError, KeyError, ValueError, IndexError) as error:
            raise StorageFault(f"mutation {sequence} makes no sense: {error}", file.path) from error
        self._sequence = sequence
        self._clock.wall_ms, self._clock.counter = clock.wall_ms, clock.counter
        if is_known:
            if doubt:
                doubt.settled(key)
            self._replayed(sequence, clock, entry, self.keyspace)

    def _make_durable(self, reading: "_Reading", sealed: list[Piece]) -> Opened:
        """Truncate the tail, and write the entries after the mark again.

        After a failed sync, the page cache may show bytes that the kernel will never write: another sync would
        not write them.
        """
        file, head, mark, reached = reading.file, reading.head, reading.mark, Mark(reading.position, reading.sequence)
        assert head is not None
        if file.size() > reached.position:
            file.truncate(reached.position)
        start = DATA_START if mark is None else mark.position
        while start < reached.position:
            data = file.read_at(min(REWRITE_BYTES, reached.position - start), start)
            file.write_at(data, start)
            start += len(data)
        file.sync()
        if reading.is_damaged:
            return self._begin_after(reading, sealed)
        if mark != reached or reading.is_mended:
            packed = head.pack()
            file.write_at(packed + pack_mark(packed, reached), 0)
            file.sync()
        return Opened(file, head, *reached, self._clock.wall_ms, self._clock.counter)

    def _begin_after(self, reading: "_Reading", sealed: list[Piece]) -> Opened:
        """Start a new file after a damaged one, which is never written again: its mark shows where to read on."""
        clock = self._clock
        if self._now_ms > clock.wall_ms:  # after the stamps of the lost mutations
            clock.wall_ms, clock.counter = self._now_ms, 0
        head = WalHead(self._node, reading.sequence + 1, clock.wall_ms, clock.counter, self._now_ms)
        file = create_wal(self._disk, self._folder, head)
        save_manifest(self._manifest, Manifest(self._node.hex(), head.base))
        sealed.append(Piece(reading.base, reading.sequence, reading.position, is_damaged=True))
        return Opened(file, head, DATA_START, reading.sequence, clock.wall_ms, clock.counter)

    # -- the folder ------------------------------------------------------------------------------------------

    def _names(self, suffix: str) -> list[str]:
        return [name for name in self._disk.names(self._folder) if name.endswith(suffix)]

    def _size(self, name: str) -> int:
        file = self._disk.open(join(self._folder, name), writable=False)
        try:
            return file.size()
        finally:
            file.close()

    def _remove(self, name: str) -> None:
        self._disk.remove(join(self._folder, name))
