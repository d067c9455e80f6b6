"""Keep a small value in two files, so that one of them is always complete.

Invariants: a crash at any point of a save leaves the old or the new value. A save overwrites only the older copy and
returns after that copy is synced; an interrupted save therefore damages nothing in use. A value that must survive
damage to either file is saved twice.

    0   magic      8   the kind of value
    8   version    u16
    10  unused     u16
    12  sequence   u64  the larger one is newer
    20  length     u32  bytes of payload, which ends the file
    24  crc        u32  CRC-32C of bytes 0..24 and the payload
    28  payload
"""

import struct
from typing import NamedTuple

from braidlog.codec.crc import crc32c
from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, join

VERSION = 1
_HEAD = struct.Struct(">8sHHQI")
_CRC = struct.Struct(">I")
PAYLOAD_AT = _HEAD.size + _CRC.size
PAYLOAD_BYTES_MAX = 256 * 1024 * 1024


class FileCopy(NamedTuple):
    name: str
    sequence: int
    payload: bytes


def pack_copy(magic: bytes, sequence: int, payload: bytes) -> bytes:
    head = _HEAD.pack(magic, VERSION, 0, sequence, len(payload))
    return head + _CRC.pack(crc32c(payload, crc32c(head))) + payload


def unpack_copy(magic: bytes, name: str, data: bytes) -> FileCopy:
    """Decode a copy; raise `ValueError` with the reason if it is invalid."""
    if len(data) < PAYLOAD_AT:
        raise ValueError(f"{len(data)} bytes are fewer than its header")
    found, version, _unused, sequence, length = _HEAD.unpack_from(data)
    if found != magic:
        raise ValueError(f"it does not begin with {magic.decode()}")
    if version != VERSION:
        raise ValueError(f"version {version} is not known here, only {VERSION}")
    if length != len(data) - PAYLOAD_AT:
        raise ValueError(f"payload is {len(data) - PAYLOAD_AT} bytes, its header says {length}")
    payload = data[PAYLOAD_AT:]
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    if crc != crc32c(payload, crc32c(data[: _HEAD.size])):
        raise ValueError("checksum does not hold")
    return FileCopy(name, sequence, payload)


class TwoCopyFile:
    """The two files `<stem>.a` and `<stem>.b` in a folder."""

    def __init__(self, disk: Disk, folder: str, stem: str, magic: bytes) -> None:
        self._disk = disk
        self._folder = folder
        self._names = (f"{stem}.a", f"{stem}.b")
        self._magic = magic
        self._newest: FileCopy | None = None
        self._unnamed: set[str] = set()
        """Files that were created and whose names are not durable yet."""
        self.faults: dict[str, str] = {}

    def load(self) -> list[FileCopy]:
        """Return the valid copies, newest first. `faults` then has each existing file that is invalid."""
        slots = []
        self.faults = {}
        for name in self._names:
            path = join(self._folder, name)
            if not self._disk.exists(path):
                continue
            file = self._disk.open(path, writable=False)
            try:
                # Read no more than the file has: a read allocates the requested size.
                size = file.size()
                data = file.read_at(size, 0) if size <= PAYLOAD_AT + PAYLOAD_BYTES_MAX else b""
                slots.append(unpack_copy(self._magic, name, data))
            except ValueError as error:
                self.faults[name] = str(error)
            finally:
                file.close()
        slots.sort(key=lambda slot: slot.sequence, reverse=True)
        self._newest = slots[0] if slots else None
        return slots

    def all_faults(self) -> dict[str, str]:
        """After `load`: return the fault of each file, including missing ones."""
        missing = [name for name in self._names if not self._disk.exists(join(self._folder, name))]
        return {**self.faults, **dict.fromkeys(missing, "the file is missing")}

    def was_never_saved(self) -> bool:
        """Return whether no save ever completed: no file exists, or only an invalid one from an interrupted save."""
        return not self.load() and len(self.faults) < len(self._names)

    def even_out(self, slots: list[FileCopy]) -> None:
        """After `load`: save the newest value again unless both files hold it.

        Two equal files were written one after the other, and the first was synced before the second: that value is
        durable. A value in only one file may be in the page cache alone, left by a failed or killed save.
        """
        if slots and (len(slots) < len(self._names) or slots[0].payload != slots[1].payload):
            self.save(slots[0].payload)

    def save(self, payload: bytes, *, copies: int = 1) -> None:
        """Block until the value is durable in `copies` of the two files."""
        for _ in range(copies):
            sequence = self._newest.sequence + 1 if self._newest else 1
            first = self._newest is None or self._newest.name == self._names[1]
            name = self._names[0] if first else self._names[1]
            self._write(name, pack_copy(self._magic, sequence, payload))
            self._newest = FileCopy(name, sequence, b"")

    def _write(self, name: str, data: bytes) -> None:
        path = join(self._folder, name)
        fresh = not self._disk.exists(path)
        if fresh:
            self._unnamed.add(name)
        file = self._disk.create(path) if fresh else self._disk.open(path, writable=True)
        try:
            file.write_at(data, 0)
            file.truncate(len(data))
            file.sync()
        finally:
            file.close()
        if self._unnamed:
            self._disk.sync_folder(self._folder)
            self._unnamed.clear()


def load_newest(pair: TwoCopyFile, what: str, *, read_only: bool) -> bytes:
    """Return the newest payload, durable in both files.

    Raise `StorageFault` with the faults of both if neither is valid.
    """
    slots = pair.load()
    if not slots:
        why = "; ".join(f"{name}: {fault}" for name, fault in pair.faults.items()) or "both files are missing"
        raise StorageFault(f"{what} cannot be read: {why}")
    if not read_only:
        pair.even_out(slots)
    return slots[0].payload
