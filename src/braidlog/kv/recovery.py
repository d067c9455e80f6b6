"""Opening a store: the newest snapshot, then the log after it.

Knows: what a crash can leave in the folder and what it cannot. Refuses to know: how mutations are decided or served.
Invariants: recovering twice is recovering once; what is shown is durable when this returns. A fault in anything that had been
durable is damage: nothing is cut, nothing is served, `StorageFault` says where. Only what follows the last file's mark is a
torn tail, or zeros that no entry was written over (storage/reserve.py), which are nothing.

    <folder>/store.a store.b                 the manifest (kv/wal.py)                        a pair of slots
             <sequence>.snapshot             (kv/snapshot.py)
             <base>.wal                      (kv/wal.py), those after the snapshot and perhaps some before it
             <base>.wal beyond the manifest  a roll that was never finished: removed
             <sequence>.snapshot.new         a snapshot that was never finished: removed
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from braidlog.kv import snapshot as snapshots
from braidlog.kv.entries import BadEntry, Entry, walk_entries
from braidlog.kv.hlc import HybridClock
from braidlog.kv.keyspace import Keyspace
from braidlog.kv.settings import Eviction, KeyValueSettings
from braidlog.kv.wal import (
    DATA_START,
    MANIFEST_MAGIC,
    MANIFEST_STEM,
    MARK_AT,
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
from braidlog.model.errors import ProtocolError, StorageFault
from braidlog.storage.files import Disk, File, join, parent
from braidlog.storage.reserve import written_end
from braidlog.storage.slots import SlotPair

REWRITE_BYTES = 1024 * 1024

Replayed = Callable[[int, HybridClock, Entry, Keyspace], None]
"""replayed(sequence, clock at its stamp, entry, keyspace): called after the entry was applied."""


class Recovered(NamedTuple):
    keyspace: Keyspace
    clock: HybridClock
    wal: Wal
    snapshot: snapshots.SnapshotHead | None
    snapshot_bytes: int
    notes: list[str]


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
        self._manifest = SlotPair(disk, folder, MANIFEST_STEM, MANIFEST_MAGIC)
        self._clock = HybridClock(node)
        self.keyspace = self._empty()
        self._sequence = 0
        self._snapshot: snapshots.SnapshotHead | None = None
        self._snapshot_bytes = 0
        self.notes: list[str] = []

    def run(self) -> Recovered:
        self._disk.make_folder(self._folder)
        # Each time: a process that was killed may have shown the names without having synced them.
        self._disk.sync_folder(parent(self._folder))
        manifest = self._open_manifest()
        self._remove_unfinished(manifest)
        self._load_snapshot()
        wal = self._replay(manifest)
        return Recovered(self.keyspace, self._clock, wal, self._snapshot, self._snapshot_bytes, self.notes)

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
        """A new store, or one whose making was cut short. One that has lost its manifest is neither."""
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
        """The newest that is whole. If it is not the newest of all, the log must reach back to it, or `_replay` refuses."""
        for name in reversed(self._names(snapshots.SUFFIX)):
            path = join(self._folder, name)
            try:
                head = snapshots.load_snapshot(self._disk, path, self.keyspace.put)
                self._check_snapshot(head, name)
            except StorageFault as fault:
                self.notes.append(str(fault))
                self.keyspace = self._empty()
                continue
            self._snapshot, self._snapshot_bytes = head, self._size(name)
            self._sequence = head.sequence
            self._clock = HybridClock(self._node, head.wall_ms, head.counter)
            return

    def _check_snapshot(self, head: snapshots.SnapshotHead, name: str) -> None:
        if head.node != self._node or name != snapshots.snapshot_name(head.sequence):
            raise StorageFault(f"the snapshot says it is {head.sequence} of node {head.node.hex()}", name)

    # -- the log ---------------------------------------------------------------------------------------------

    def _replay(self, manifest: Manifest) -> Wal:
        names = self._names(SUFFIX)
        if not names or names[-1] != wal_name(manifest.wal_base):
            raise StorageFault(f"{wal_name(manifest.wal_base)} is missing: {self._why()}", self._folder)
        sealed: list[Piece] = []
        expected: int | None = None
        opened = None
        for name in names:
            is_last = name == names[-1]
            file = self._disk.open(join(self._folder, name), writable=is_last)
            try:
                head, mark = self._read_head(file, name)
                if expected is None and head.base > self._sequence + 1:
                    raise StorageFault(
                        f"mutations {self._sequence + 1} to {head.base - 1} are missing: {self._why()}", self._folder
                    )
                if expected is not None and head.base != expected:
                    raise StorageFault(f"{name} follows mutation {expected - 1}: a file is missing", self._folder)
                reached = self._replay_file(file, name, head, mark, is_last=is_last)
                expected = reached.sequence + 1
                if is_last:
                    opened = self._make_durable(file, head, mark, reached)
                else:
                    sealed.append(Piece(head.base, reached.sequence, reached.position))
            finally:
                if opened is None:
                    file.close()
        assert opened is not None
        if expected is not None and expected <= self._sequence and self._snapshot is not None:
            raise StorageFault(
                f"the log ends with mutation {expected - 1}, before its snapshot's {self._snapshot.sequence}",
                self._folder,
            )
        return Wal(self._disk, self._folder, self._manifest, self._settings, opened, sealed, syncer=self._syncer)

    def _why(self) -> str:
        return "; ".join(self.notes) or "a file is lost"

    def _read_head(self, file: File, name: str) -> tuple[WalHead, Mark | None]:
        data = file.read_at(DATA_START, 0)
        try:
            head = unpack_wal_head(data)
        except ProtocolError as error:
            raise StorageFault(f"the log file is damaged: {error}", file.path) from error
        if head.node != self._node or name != wal_name(head.base):
            raise StorageFault(f"the log file says it is {head.base} of node {head.node.hex()}", file.path)
        return head, unpack_mark(data)

    def _replay_file(self, file: File, name: str, head: WalHead, mark: Mark | None, *, is_last: bool) -> Mark:
        """Apply what is new in a file; return where its entries end."""
        size = file.size()
        sequence, position, marked = head.base - 1, DATA_START, head.base - 1
        clock = HybridClock(self._node, head.wall_ms, head.counter)
        try:
            for entry in walk_entries(file, DATA_START, size, head.wall_ms):
                sequence, position = sequence + 1, entry.end
                clock.tick(entry.wall_ms)
                if sequence > self._sequence:
                    self._apply(sequence, clock, entry, file)
                if mark is not None and position <= mark.position:
                    marked = sequence
        except BadEntry as bad:
            # Without a mark nobody can say whether these bytes were ever durable; in a file that was followed by
            # another they were. Below the mark they were too: that is checked behind the loop.
            if mark is None or not is_last:
                raise StorageFault(f"the log is damaged after mutation {sequence}: {bad}", file.path) from bad
            torn = written_end(file, position, size) - position  # what follows are zeros for entries that never came
            if torn:
                self.notes.append(f"{name}: a torn tail of {torn} bytes cut off ({bad.why})")
        if mark is not None and (position < mark.position or marked != mark.sequence):
            raise StorageFault(
                f"the log is damaged: byte {mark.position} and mutation {mark.sequence} were durable, "
                f"it has byte {position} and mutation {marked}",
                file.path,
            )
        return Mark(position, sequence)

    def _apply(self, sequence: int, clock: HybridClock, entry: Entry, file: File) -> None:
        try:
            self.keyspace.apply(entry.op, entry.key, entry.value, entry.ttl_seconds, entry.wall_ms)
        except (ProtocolError, KeyError, ValueError, IndexError) as error:
            raise StorageFault(f"mutation {sequence} makes no sense: {error}", file.path) from error
        self._sequence = sequence
        self._clock.wall_ms, self._clock.counter = clock.wall_ms, clock.counter
        self._replayed(sequence, clock, entry, self.keyspace)

    def _make_durable(self, file: File, head: WalHead, mark: Mark | None, reached: Mark) -> Opened:
        """Cut the tail and write the rest above the mark once more.

        After a failed sync the page cache may show bytes that it no longer means to write: a sync alone would not write them.
        """
        if file.size() > reached.position:
            file.truncate(reached.position)
        start = DATA_START if mark is None else mark.position
        while start < reached.position:
            data = file.read_at(min(REWRITE_BYTES, reached.position - start), start)
            file.write_at(data, start)
            start += len(data)
        file.sync()
        if mark != reached:
            file.write_at(pack_mark(head.pack(), reached), MARK_AT)
            file.sync()
        return Opened(file, head, reached.position, reached.sequence, self._clock.wall_ms, self._clock.counter)

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
