"""The local store's write-ahead log: buffers mutations and writes them to a sequence of files.

Does not handle: the effect of mutations.
Invariants: a crash never loses an entry at or below `durable_sequence`. A file is synced to its end before the
manifest names the next one, and the next one takes entries only after the manifest is durable. So only the last
file can have a torn tail, or zeros after its last entry (storage/segment/preallocation.py). After a failed sync
nothing is acknowledged again. A full disk stops new mutations and loses none; writes resume when space is
available.

`<first sequence, 20 digits>.wal`

     0  magic      8    BRAIDKVW
     8  version    u16  1
    10  unused     6
    16  node       16   the id of the node whose mutations these are
    32  base       u64  the sequence of the first entry
    40  wall       u64  the stamp of the mutation before it: wall ...
    48  counter    u32  ... and counter
    52  created    u64  ms
    60  crc        u32  CRC-32C of bytes 0..60
    64  mark: position  u64  everything below was synced by a sync that had returned
    72  mark: sequence  u64  the last entry below it (base - 1: none)
    80  mark: crc       u32  CRC-32C of bytes 64..80, seeded with bytes 0..60's
    84  unused     44
   128  entries    kv/wal/wal_entries.py
        reserve    preallocated zeros that the next entries overwrite; in the last file of an open store
"""

import contextlib
import struct
import threading
from collections.abc import Awaitable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from braidlog.codec.crc import crc32c
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.wal.file_header import pack_head, unpack_head
from braidlog.kv.wal.wal_entries import pack_entry
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.runtime.runtime import Syncable
from braidlog.model.settings import Flush
from braidlog.storage.files import Disk, File, is_full, join
from braidlog.storage.segment.preallocation import SmallSyncs, write_reserve
from braidlog.storage.segment.segment_files import DAMAGED
from braidlog.storage.two_copy_file import TwoCopyFile

MAGIC = b"BRAIDKVW"
SUFFIX = ".wal"
DATA_START = 128
MARK_AT = 64
_CRC = struct.Struct(">I")
_MARK = struct.Struct(">QQ")
MARK_END = MARK_AT + _MARK.size + _CRC.size
_MARK_SEED_BYTES = 60
MANIFEST_MAGIC = b"BRAIDKVM"
MANIFEST_STEM = "store"
ROLL_BYTES = 1024 * 1024
"""Added to the unsynced bytes while a roll is due: it takes several syncs, which should run on a thread."""


class WalHead(NamedTuple):
    """The head of a log file."""

    node: bytes
    base: int
    wall_ms: int
    counter: int
    created_ms: int

    def pack(self) -> bytes:
        return pack_head(MAGIC, self)


class Mark(NamedTuple):
    position: int
    sequence: int


class Manifest(msgspec.Struct, frozen=True):
    """What a store reads first: its node, and the newest log file in use."""

    node: str
    wal_base: int


def wal_name(base: int) -> str:
    return f"{base:020d}{SUFFIX}"


def unpack_wal_head(data: bytes) -> WalHead:
    """Return the head, or raise `ProtocolError` with the reason."""
    if len(data) < DATA_START:
        raise ProtocolError(f"{len(data)} bytes are fewer than its head")
    return WalHead(*unpack_head(MAGIC, data))


def pack_mark(head: bytes, mark: Mark) -> bytes:
    data = _MARK.pack(*mark)
    return data + _CRC.pack(crc32c(data, crc32c(head[:_MARK_SEED_BYTES])))


def unpack_mark(data: bytes) -> Mark | None:
    """Return the mark of a file that begins with `data`; None if it is invalid."""
    mark = Mark(*_MARK.unpack_from(data, MARK_AT))
    return mark if data[MARK_AT:MARK_END] == pack_mark(data, mark) else None


def create_wal(disk: Disk, folder: str, head: WalHead) -> File:
    """Create an empty log file, durably with its name."""
    file = disk.create(join(folder, wal_name(head.base)))
    packed = head.pack()
    content = (packed + pack_mark(packed, Mark(DATA_START, head.base - 1))).ljust(DATA_START, b"\0")
    file.write_at(content, 0)
    file.sync()
    disk.sync_folder(folder)
    return file


class Piece(NamedTuple):
    """A sealed log file, with the entries from `base` to `last`."""

    base: int
    last: int
    size: int
    is_damaged: bool = False


class Opened(NamedTuple):
    """The last log file after recovery: intact, durable, and marked as such."""

    file: File
    head: WalHead
    position: int
    sequence: int
    wall_ms: int
    counter: int


class Syncer(Protocol):
    """Shares syncs among several logs: a `Runtime`."""

    def durable(self, log: Syncable, next_offset: int) -> Awaitable[None]: ...

    def appended(self, log: Syncable) -> None: ...


class SyncAtOnce:
    """Syncs immediately. For tools and tests, which share no syncs."""

    async def durable(self, log: Syncable, next_offset: int) -> None:
        log.sync(next_offset)

    def appended(self, log: Syncable) -> None:
        pass


class Wal:
    """The log of an open store (a `MutationLog`). One thread appends; any thread may sync.

    Three locks, acquired in this order: `_sync_lock` (one sync at a time), `_write_lock` (one write at a time),
    `_lock` (the buffer; never held during disk I/O).
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        manifest: TwoCopyFile,
        settings: KeyValueSettings,
        opened: Opened,
        sealed: list[Piece],
        *,
        syncer: Syncer,
    ) -> None:
        self._disk = disk
        self.folder = folder
        self.settings = settings
        self._manifest = manifest
        self._file = opened.file
        self._head = opened.head
        self._packed = opened.head.pack()
        self._position = opened.position
        self._mark = Mark(opened.position, opened.sequence)
        self._reserve_bytes = 0
        """Zeros that a write appends when it has used up the last ones."""
        self._reserve_end = 0
        """The end of the preallocated zeros, if there are any."""
        self._small_syncs = SmallSyncs()
        self._sealed = sealed
        self._syncer = syncer
        self._lock = threading.Lock()
        self._write_lock = threading.RLock()
        self._sync_lock = threading.RLock()
        self._parts: list[bytes | bytearray] = []
        self._buffered_bytes = 0
        self._unsynced_bytes = 0
        self._sequence = opened.sequence
        self._stamp = (opened.wall_ms, opened.counter)
        self._written = (opened.sequence, opened.wall_ms, opened.counter)
        self._durable_sequence = opened.sequence
        self._roll_at_ms: int | None = None
        self._stalled: StorageFault | None = None
        self._fault: StorageFault | None = None
        self._closed = False

    # -- state -----------------------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """The sequence of the last appended mutation."""
        return self._sequence

    @property
    def durable_sequence(self) -> int:
        """The sequence of the last mutation that survives a power loss."""
        return self._durable_sequence

    @property
    def durable_offset(self) -> int:
        """The first sequence that is not durable, as for a partition's log."""
        return self._durable_sequence + 1

    @property
    def unsynced_bytes(self) -> int:
        """Bytes not yet synced, including the zeros of the next write, and `ROLL_BYTES` while a roll is due."""
        is_used_up = self._position + self._buffered_bytes > self._reserve_end
        more = ROLL_BYTES if self._roll_at_ms is not None else self._reserve_bytes if is_used_up else 0
        return self._unsynced_bytes + more

    @property
    def size_bytes(self) -> int:
        with self._lock:
            return sum(piece.size for piece in self._sealed) + self._position + self._buffered_bytes

    @property
    def files(self) -> int:
        return len(self._sealed) + 1

    @property
    def base(self) -> int:
        """The first sequence of the file that takes entries."""
        return self._head.base

    def _check_writable(self) -> None:
        """Raise unless mutations are accepted. After a full disk, this retries the write."""
        if self._fault is not None:
            raise self._fault.again()
        if self._closed:
            raise BrokerError(Reason.LOG_CLOSED, "the key-value store is closed: the node is stopping")
        if self._stalled is not None:
            self.write()

    @property
    def fault(self) -> StorageFault | None:
        """Why the store has stopped, if it has."""
        return self._fault

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, op: int, key: bytes, argument: bytes, ttl_seconds: int, stamp: tuple[int, int]) -> int:
        """Append a change to the buffer; return its sequence. It is in memory only until `write` or `sync`."""
        if self._stalled is not None or self._fault is not None or self._closed:
            self._check_writable()
        crc, body = pack_entry(stamp[0], op, key, argument, ttl_seconds)
        size = len(body) + 4
        with self._lock:
            self._parts += (crc, body)
            self._buffered_bytes += size
            self._unsynced_bytes += size
            self._sequence += 1
            self._stamp = stamp
            return self._sequence

    @property
    def takes_entries(self) -> bool:
        """Return whether `append` would succeed now."""
        return self._stalled is None and self._fault is None and not self._closed

    def append_packed(self, entries: bytes | bytearray, count: int, stamp: tuple[int, int]) -> int:
        """Append packed changes, applied since `takes_entries` was true; return the last one's sequence."""
        with self._lock:
            self._parts.append(entries)
            self._buffered_bytes += len(entries)
            self._unsynced_bytes += len(entries)
            self._sequence += count
            self._stamp = stamp
            return self._sequence

    async def durable(self, sequence: int, flush: Flush = Flush.ACK) -> None:
        """Return when everything up to `sequence` is stored as `flush` demands."""
        if flush is Flush.ACK:
            await self._syncer.durable(self, sequence + 1)
        else:
            self.hand_over()

    def hand_over(self) -> None:
        """Write everything appended to the kernel, and schedule its sync."""
        self.write()
        self._syncer.appended(self)

    def write(self) -> None:
        """Write the buffer to the kernel: it survives `kill -9` then."""
        with self._write_lock:
            with self._lock:
                parts, self._parts = self._parts, []
                size, self._buffered_bytes = self._buffered_bytes, 0
                written = (self._sequence, *self._stamp)
            if not parts:
                self._stalled = None
                return
            end = self._position + size
            try:
                self._file.append(parts, self._position)
                if self._reserve_bytes and end > self._reserve_end:
                    self._reserve_end = write_reserve(self._file, end, self._reserve_bytes)
            except StorageFault as fault:
                self._put_back(parts, size, fault)
                raise
            self._position = end
            self._written = written
            self._stalled = None

    @contextlib.contextmanager
    def held_still(self) -> Iterator[None]:
        """Write everything to the kernel, and block writes and new files for the duration, except for the mark.

        The last file ends with its last entry, so that a reader limited to its length sees no later entry.
        """
        with self._write_lock:
            self.write()
            self._drop_reserve()
            yield

    def _drop_reserve(self) -> None:
        """Truncate the file after its last entry; durable with the next sync. Requires `_write_lock`."""
        if self._reserve_end > self._position:
            self._file.truncate(self._position)
        self._reserve_end = 0

    def _put_back(self, parts: list[bytes | bytearray], size: int, fault: StorageFault) -> None:
        """Return entries to the buffer after a failed write. On a full disk nothing is lost: they wait for space,
        and new ones are refused.

        Bytes already written are beyond the mark, and the next attempt overwrites them.
        """
        with self._lock:
            self._parts[:0] = parts
            self._buffered_bytes += size
        if is_full(fault):
            self._stalled = fault
        else:
            self._fail(fault)

    # -- durability ------------------------------------------------------------------------------------------

    def sync(self, upto: int | None = None) -> int:
        """Make everything appended before the call (or below `upto`) durable; return the next sequence.

        A failure is final, as for a partition: the kernel may have dropped the pages that it could not write.
        """
        with self._sync_lock:
            if self._fault is not None:
                raise self._fault.again()
            if upto is not None and self.durable_offset >= upto and self._roll_at_ms is None:
                return self.durable_offset
            if self._roll_at_ms is not None:
                self._roll(self._roll_at_ms)
            else:
                with self._write_lock:
                    self.write()
                    reached, position = self._written, self._position
                if reached[0] > self._durable_sequence:
                    self._sync_file(Mark(position, reached[0]))
            return self.durable_offset

    def _sync_file(self, mark: Mark) -> None:
        try:
            self._file.sync()
            self._set_mark(mark)
        except StorageFault as fault:
            self._fail(fault)
            raise
        with self._lock:
            self._durable_sequence = mark.sequence
            # The buffer is newer than the sync: unsynced are its bytes and those written during the sync.
            self._unsynced_bytes = self._buffered_bytes + self._position - mark.position
            if self.settings.flush is Flush.ACK:
                self._reserve_bytes = self._small_syncs.note(mark.position - self._mark.position, mark.position)
            self._mark = mark

    def _set_mark(self, mark: Mark) -> None:
        """Write the mark; it is durable with the next sync."""
        try:
            self._file.write_at(pack_mark(self._packed, mark), MARK_AT)
        except StorageFault:
            with contextlib.suppress(StorageFault):  # half a mark makes zeros look damaged; the old one is valid
                self._file.write_at(pack_mark(self._packed, self._mark), MARK_AT)
            raise

    def _fail(self, fault: StorageFault) -> None:
        self._fault = StorageFault(f"the store stopped after a fault and must be reopened: {fault}", self.folder)

    # -- files -----------------------------------------------------------------------------------------------

    def request_roll(self, now_ms: int) -> int:
        """Start a new file with the next sync; return the `upto` for that sync. An empty file is not replaced."""
        if self._sequence >= self._head.base:
            self._roll_at_ms = now_ms
        return self._sequence + 1

    def _roll(self, now_ms: int) -> None:
        """Seal this file and start the next. Writers wait during the roll; appends do not."""
        with self._write_lock:
            self.write()
            sequence, wall_ms, counter = self._written
            may_end = self._may_end()
            self._sync_file(Mark(self._position, sequence))
            if not may_end:
                self._roll_at_ms = None
                return
            head = WalHead(self._head.node, sequence + 1, wall_ms, counter, now_ms)
            try:
                file = create_wal(self._disk, self.folder, head)
            except StorageFault as fault:
                self._undo_roll(head, fault)
                return  # everything is durable nevertheless; the next snapshot retries
            try:
                save_manifest(self._manifest, Manifest(head.node.hex(), head.base))
            except StorageFault as fault:
                self._fail(fault)  # only recovery can decide whether the new file is in use
                raise
            with self._lock:
                self._sealed.append(Piece(self._head.base, sequence, self._position))
                self._file, self._head, self._packed = file, head, head.pack()
                self._position, self._mark = DATA_START, Mark(DATA_START, sequence)
                self._reserve_bytes = 0
            self._roll_at_ms = None

    def _may_end(self) -> bool:
        """Truncate the file after its last entry, for the next sync. Return False on a full disk: a file with zeros
        gets no successor."""
        try:
            self._drop_reserve()
        except StorageFault as fault:
            if is_full(fault):
                return False
            self._fail(fault)
            raise
        return True

    def _undo_roll(self, head: WalHead, fault: StorageFault) -> None:
        self._roll_at_ms = None
        if not is_full(fault):
            self._fail(fault)
            raise fault
        path = join(self.folder, wal_name(head.base))
        try:
            if self._disk.exists(path):
                self._disk.remove(path)
        except StorageFault as worse:
            self._fail(worse)
            raise

    def remove_upto(self, sequence: int) -> int:
        """Remove the files with entries only up to `sequence`; return the bytes freed. A damaged file is renamed
        instead."""
        freed = 0
        while self._sealed and self._sealed[0].last <= sequence:
            path = join(self.folder, wal_name(self._sealed[0].base))
            if self._sealed[0].is_damaged:
                self._disk.rename(path, path + DAMAGED)
            else:
                self._disk.remove(path)
            with self._lock:
                freed += self._sealed.pop(0).size
        if freed:
            self._disk.sync_folder(self.folder)
        return freed

    def close(self) -> None:
        """Make everything durable, or raise."""
        if self._closed:
            return
        try:
            if self._fault is None:
                self.sync()
                with self._sync_lock, self._write_lock:
                    self._drop_reserve()
                    self._file.sync()  # the mark, and the file's size
            elif self._durable_sequence < self._sequence:
                raise self._fault.again()  # with a lazy `flush`, no caller may have seen the fault yet
        finally:
            self._closed = True
            with contextlib.suppress(StorageFault):
                self._file.close()


def save_manifest(slots: TwoCopyFile, manifest: Manifest) -> None:
    slots.save(msgspec.json.encode(manifest), copies=2)
