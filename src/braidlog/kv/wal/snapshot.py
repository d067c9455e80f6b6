"""Snapshot files: every key of the store as of one mutation. A published file is complete.

Does not handle: when to take a snapshot, what it replaces.
Invariant: a file was synced before it got this name. Every byte is under a checksum; the count at the end detects
a file truncated between two blocks.

`<sequence, 20 digits>.snapshot`; `.snapshot.new` while it is written

     0  magic     8    BRAIDKVS
     8  version   u16  1
    10  unused    6
    16  node      16
    32  sequence  u64  the last mutation that it includes
    40  wall      u64  the stamp of that mutation: wall ...
    48  counter   u32  ... and counter
    52  taken     u64  ms
    60  crc       u32  CRC-32C of bytes 0..60
    64  blocks    of each: length u32, crc u32 (CRC-32C of the length and the payload), payload: keys
        the last block contains only its count of keys, u64

a key:  kind u8 (1 string, 2 counter, 3 list, 4 hash), key length u16, key, deadline u64 (ms since 1970, 0 is never),
        length u32, the value as kv/engine/values.py writes it
"""

import struct
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from braidlog.codec.crc import crc32c
from braidlog.kv.engine.keyspace import Image
from braidlog.kv.engine.values import Value, code_of, read_coded, write_value
from braidlog.kv.wal.file_header import HEAD_BYTES, pack_head, unpack_head
from braidlog.model.errors import ProtocolError, StorageFault
from braidlog.model.limits import KV_COLLECTION_BYTES_MAX, KV_KEY_BYTES_MAX
from braidlog.storage.files import Disk, File, join

MAGIC = b"BRAIDKVS"
SUFFIX = ".snapshot"
NEW_SUFFIX = ".snapshot.new"
_CRC = struct.Struct(">I")
_BLOCK = struct.Struct(">II")
_KEY = struct.Struct(">BH")
_DEADLINE = struct.Struct(">QI")
_COUNT = struct.Struct(">Q")
DATA_START = HEAD_BYTES
BLOCK_BYTES = 256 * 1024
BLOCK_BYTES_MAX = BLOCK_BYTES + KV_COLLECTION_BYTES_MAX + KV_KEY_BYTES_MAX + 64
SLICE_KEYS = 256
"""Keys serialized before the writer may pause."""


class SnapshotHead(NamedTuple):
    node: bytes
    sequence: int
    wall_ms: int
    counter: int
    taken_ms: int

    def pack(self) -> bytes:
        return pack_head(MAGIC, self)


def snapshot_name(sequence: int) -> str:
    return f"{sequence:020d}{SUFFIX}"


# -- writing -----------------------------------------------------------------------------------------------------


def slices(image: Image) -> Iterator[bytes]:
    """Yield the blocks of an image, including the last one; an empty block is a place to pause.

    An image of many small keys yields after every `SLICE_KEYS`, so that the caller can run other tasks between.
    """
    deadlines = image.deadlines
    items = iter(image.data.items())
    parts: list[bytes] = []
    size = count = 0
    while chunk := list(islice(items, SLICE_KEYS)):
        for key, value in chunk:
            written = write_value(value)
            parts += (
                _KEY.pack(code_of(value), len(key)),
                key,
                _DEADLINE.pack(deadlines.get(key, 0), len(written)),
                written,
            )
            size += len(written)
            if size >= BLOCK_BYTES:
                yield _block(b"".join(parts))
                parts, size = [], 0
        count += len(chunk)
        size += 32 * len(chunk)
        yield b""
    if parts:
        yield _block(b"".join(parts))
    yield _block(_COUNT.pack(count), is_last=True)


def _block(payload: bytes, *, is_last: bool = False) -> bytes:
    length = _CRC.pack(0 if is_last else len(payload))
    return length + _CRC.pack(crc32c(payload, crc32c(length))) + payload


class SnapshotWriter:
    """Writes a snapshot to the disk. Any thread may call it, one at a time."""

    def __init__(self, disk: Disk, folder: str, head: SnapshotHead) -> None:
        self._disk = disk
        self._folder = folder
        self._name = snapshot_name(head.sequence)
        self._path = join(folder, self._name + ".new")
        if disk.exists(self._path):
            disk.remove(self._path)
        self._file = disk.create(self._path)
        self._file.write_at(head.pack(), 0)
        self.size = DATA_START

    def write(self, blocks: bytes) -> None:
        self._file.write_at(blocks, self.size)
        self.size += len(blocks)

    def seal(self) -> None:
        """Make the bytes durable."""
        self._file.sync()
        self._file.close()

    def publish(self) -> None:
        """Rename the file to its final name, durably."""
        self._disk.rename(self._path, join(self._folder, self._name))
        self._disk.sync_folder(self._folder)

    def abandon(self) -> None:
        """Delete the unfinished file."""
        self._file.close()
        if self._disk.exists(self._path):
            self._disk.remove(self._path)


# -- reading -----------------------------------------------------------------------------------------------------


def load_snapshot(disk: Disk, path: str, put: Callable[[bytes, Value, int], None]) -> SnapshotHead:
    """Pass every key (with value and deadline) to `put`; return the head. Raise `StorageFault` if the file is not
    intact."""
    file = disk.open(path, writable=False)
    try:
        head = SnapshotHead(*unpack_head(MAGIC, file.read_at(HEAD_BYTES, 0)))
        _read_keys(file, put)
    except (ProtocolError, struct.error) as error:
        raise StorageFault(f"the snapshot is damaged: {error}", path) from error
    finally:
        file.close()
    return head


def _read_keys(file: File, put: Callable[[bytes, Value, int], None]) -> None:
    position, size, count, is_last = DATA_START, file.size(), 0, False
    payload = b""
    while not is_last:
        payload, position, is_last = read_block(file, position, size)
        if not is_last:
            for key, value, deadline in keys_in(payload):
                put(key, value, deadline)
                count += 1
    if position != size or _COUNT.unpack(payload)[0] != count:
        raise ProtocolError(f"{count} keys in {position} of {size} bytes are not what its end says")


def load_whole_blocks(file: File, put: Callable[[bytes, Value, int], None]) -> None:
    """Pass the keys of intact blocks to `put`. Blocks after a damaged one count only if they lead to the end of the
    file."""
    size, starts = file.size(), list[int]()
    position, damaged_at, is_last = DATA_START, size, False
    while not is_last and position < size:
        try:
            _, end, is_last = read_block(file, position, size)
            starts.append(position)
        except ProtocolError:
            damaged_at = min(damaged_at, position)
            end = position + _BLOCK.size + int.from_bytes(file.read_at(_CRC.size, position), "big")
        position = end
    is_led_to = is_last and position == size
    for start in starts:
        payload, _, is_end = read_block(file, start, size)
        if not is_end and (is_led_to or start < damaged_at):
            for key, value, deadline in keys_in(payload):
                put(key, value, deadline)


def read_block(file: File, position: int, size: int) -> tuple[bytes, int, bool]:
    """Return the payload of the block at `position`, its end, and whether it is the last."""
    head = file.read_at(_BLOCK.size, position)
    if len(head) < _BLOCK.size:
        raise ProtocolError(f"no block at byte {position}")
    length, crc = _BLOCK.unpack(head)
    is_last = length == 0
    start = position + _BLOCK.size
    end = start + (_COUNT.size if is_last else length)
    if end > size or length > BLOCK_BYTES_MAX:
        raise ProtocolError(f"a block of {length} bytes at byte {position} does not fit")
    payload = file.read_at(end - start, start)
    if crc != crc32c(payload, crc32c(head[:4])):
        raise ProtocolError(f"the checksum of the block at byte {position} does not hold")
    return payload, end, is_last


def keys_in(payload: bytes) -> Iterator[tuple[bytes, Value, int]]:
    """Yield the keys of a block, with value and deadline."""
    position = 0
    while position < len(payload):
        code, key_length = _KEY.unpack_from(payload, position)
        position += _KEY.size
        key = payload[position : position + key_length]
        position += key_length
        deadline, length = _DEADLINE.unpack_from(payload, position)
        position += _DEADLINE.size
        if position + length > len(payload):
            raise ProtocolError("a key whose lengths do not add up")
        yield key, read_coded(code, payload[position : position + length]), deadline
        position += length
