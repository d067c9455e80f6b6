"""The store's write-ahead log: mutations on their way to the disk, in files that follow one another.

Knows: which entries are buffered, written, durable; when a file ends and the next begins. Refuses to know: what a mutation does.
Invariants: nothing at or below `durable_sequence` can be lost by a crash. A file is synced to its end before the next
one is named in the manifest, which takes no entry before that is durable: so only the last file can have a torn tail, or zeros
behind its last entry (storage/segment/preallocation.py). After a failed sync nothing is acknowledged again; a full
disk stops new mutations, loses none, and is over when there is room again.

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
        reserve    zeros up to the end of the file, which the next entries are written over; in the last file of an open store
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
"""What a roll counts as un-synced: it takes several syncs, and whoever may choose does it beside the loop."""


class WalHead(NamedTuple):
    """What a file says of itself."""

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
    """What a store must know before it reads anything else: whose it is, and which log file was the last to be taken into use."""

    node: str
    wal_base: int


def wal_name(base: int) -> str:
    return f"{base:020d}{SUFFIX}"


def unpack_wal_head(data: bytes) -> WalHead:
    """Return the head, or raise `ProtocolError` with what is wrong with it."""
    if len(data) < DATA_START:
        raise ProtocolError(f"{len(data)} bytes are fewer than its head")
    return WalHead(*unpack_head(MAGIC, data))


def pack_mark(head: bytes, mark: Mark) -> bytes:
    data = _MARK.pack(*mark)
    return data + _CRC.pack(crc32c(data, crc32c(head[:_MARK_SEED_BYTES])))


def unpack_mark(data: bytes) -> Mark | None:
    """The mark of a file that begins with `data`; None if it does not hold."""
    mark = Mark(*_MARK.unpack_from(data, MARK_AT))
    return mark if data[MARK_AT:MARK_END] == pack_mark(data, mark) else None


def create_wal(disk: Disk, folder: str, head: WalHead) -> File:
    """Make an empty log file and its name durable."""
    file = disk.create(join(folder, wal_name(head.base)))
    packed = head.pack()
    content = (packed + pack_mark(packed, Mark(DATA_START, head.base - 1))).ljust(DATA_START, b"\0")
    file.write_at(content, 0)
    file.sync()
    disk.sync_folder(folder)
    return file


class Piece(NamedTuple):
    """A log file that takes no more entries: those from `base` to `last`."""

    base: int
    last: int
    size: int
    is_damaged: bool = False


class Opened(NamedTuple):
    """The last log file as recovery leaves it: whole, durable, and marked so."""

    file: File
    head: WalHead
    position: int
    sequence: int
    wall_ms: int
    counter: int


class Syncer(Protocol):
    """Who syncs for many at once: a `Runtime`."""

    def durable(self, log: Syncable, next_offset: int) -> Awaitable[None]: ...

    def appended(self, log: Syncable) -> None: ...


class SyncAtOnce:
    """For tools and tests, which have nobody to share a sync with."""

    async def durable(self, log: Syncable, next_offset: int) -> None:
        log.sync(next_offset)

    def appended(self, log: Syncable) -> None:
        pass


class Wal:
    """The log of an open store (a `MutationLog`). One thread appends; any thread may sync.

    Three locks, taken in this order: `_sync_lock` (one sync at a time), `_write_lock` (one write at a time), `_lock` (the
    buffer; held for no call of the disk).
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
        """How many zeros a write leaves behind it that has used up the last ones."""
        self._reserve_end = 0
        """Where the file ends, if it has any."""
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

    # -- what is there ---------------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """The last mutation that was appended."""
        return self._sequence

    @property
    def durable_sequence(self) -> int:
        """The last mutation that survives power loss."""
        return self._durable_sequence

    @property
    def durable_offset(self) -> int:
        """The same for who counts like a log: the first sequence that is not durable."""
        return self._durable_sequence + 1

    @property
    def unsynced_bytes(self) -> int:
        """With the zeros that the next write adds, and what a roll counts as."""
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
        """Raise unless mutations are taken. Where the disk was full this is where it is asked again."""
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
        """Take a change; return its sequence. It is in memory only until `write` or `sync`."""
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
        """Whether `append` would refuse nothing now."""
        return self._stalled is None and self._fault is None and not self._closed

    def append_packed(self, entries: bytes | bytearray, count: int, stamp: tuple[int, int]) -> int:
        """Take changes that are packed already, and were applied since `takes_entries` held; return the last one's sequence."""
        with self._lock:
            self._parts.append(entries)
            self._buffered_bytes += len(entries)
            self._unsynced_bytes += len(entries)
            self._sequence += count
            self._stamp = stamp
            return self._sequence

    async def durable(self, sequence: int, flush: Flush = Flush.ACK) -> None:
        """Return when everything up to `sequence` is kept as `flush` says."""
        if flush is Flush.ACK:
            await self._syncer.durable(self, sequence + 1)
        else:
            self.hand_over()

    def hand_over(self) -> None:
        """What was appended is with the kernel now, and on the disk in its time."""
        self.write()
        self._syncer.appended(self)

    def write(self) -> None:
        """Hand what is buffered to the kernel: it survives `kill -9` then."""
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
        """Everything appended is with the kernel, and no file of the log is written to or made meanwhile, but for its mark.

        The last one ends with its last entry: who remembers its length has nothing in it that is written later.
        """
        with self._write_lock:
            self.write()
            self._drop_reserve()
            yield

    def _drop_reserve(self) -> None:
        """End the file where its entries end; durable with the next sync. Called with `_write_lock` held."""
        if self._reserve_end > self._position:
            self._file.truncate(self._position)
        self._reserve_end = 0

    def _put_back(self, parts: list[bytes | bytearray], size: int, fault: StorageFault) -> None:
        """The disk refused. If it is merely full nothing is lost: the entries wait for room, and no new ones are taken.

        What was written of them lies beyond the mark, and is written over by the next attempt.
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
        """Return when everything appended before the call (or below `upto`) is durable, and the next sequence.

        A failure is final, as for a partition: the kernel may have dropped the pages it could not write.
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
            # What is in the buffer is the newest: exactly that is not synced, and what was written during the sync.
            self._unsynced_bytes = self._buffered_bytes + self._position - mark.position
            if self.settings.flush is Flush.ACK:
                self._reserve_bytes = self._small_syncs.note(mark.position - self._mark.position, mark.position)
            self._mark = mark

    def _set_mark(self, mark: Mark) -> None:
        """It becomes durable with the next sync."""
        try:
            self._file.write_at(pack_mark(self._packed, mark), MARK_AT)
        except StorageFault:
            with contextlib.suppress(StorageFault):  # half a mark would put zeros in doubt; the old one is true too
                self._file.write_at(pack_mark(self._packed, self._mark), MARK_AT)
            raise

    def _fail(self, fault: StorageFault) -> None:
        self._fault = StorageFault(f"the store stopped after a fault and must be reopened: {fault}", self.folder)

    # -- files -----------------------------------------------------------------------------------------------

    def request_roll(self, now_ms: int) -> int:
        """Begin a new file with the next sync; return the `upto` to sync for it. An empty file is not followed by another."""
        if self._sequence >= self._head.base:
            self._roll_at_ms = now_ms
        return self._sequence + 1

    def _roll(self, now_ms: int) -> None:
        """Seal this file and begin the next. Held up meanwhile: whoever writes; not who appends."""
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
                return  # everything is durable all the same; the next snapshot asks again
            try:
                save_manifest(self._manifest, Manifest(head.node.hex(), head.base))
            except StorageFault as fault:
                self._fail(fault)  # whether the new file is in use only an opening can tell
                raise
            with self._lock:
                self._sealed.append(Piece(self._head.base, sequence, self._position))
                self._file, self._head, self._packed = file, head, head.pack()
                self._position, self._mark = DATA_START, Mark(DATA_START, sequence)
                self._reserve_bytes = 0
            self._roll_at_ms = None

    def _may_end(self) -> bool:
        """End the file with its last entry, for the next sync to make durable. One with zeros is not followed by another."""
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
        """Remove the files whose entries are all at or below `sequence`; return the bytes freed. A damaged one is set aside."""
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
                    self._file.sync()  # the mark, and where the file ends
            elif self._durable_sequence < self._sequence:
                raise self._fault.again()  # with a lazy `flush` nobody may have heard of it yet
        finally:
            self._closed = True
            with contextlib.suppress(StorageFault):
                self._file.close()


def save_manifest(slots: TwoCopyFile, manifest: Manifest) -> None:
    slots.save(msgspec.json.encode(manifest), copies=2)
