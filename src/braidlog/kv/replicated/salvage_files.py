"""Files of salvaged tails: truncated mutations, kept until they are committed on the new leader.

Invariant: a file and its name are synced before anything is truncated.

`<log, 3 digits>-<epoch>-<offset>-<number>.tail`, of the first mutation in it; `.tail.new` while it is written

     0  magic    8    BRAIDKVT
     8  version  u16  1
    10  log      u16
    12  count    u32  of mutations
    16  of each: length u32, crc u32 (CRC-32C of what follows), key length u16, key, record with origin (log_records.py)
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from braidlog.codec.crc import crc32c
from braidlog.codec.errors import ProtocolError
from braidlog.kv.replicated.log_records import SlotRecord, unpack_record
from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, join, read_whole, write_whole

MAGIC = b"BRAIDKVT"
VERSION = 1
SUFFIX, NEW_SUFFIX = ".tail", ".tail.new"
REST_SUFFIX = ".rest"
"""Suffix of the temporary file that replaces a tail by its remaining mutations."""
_HEAD = struct.Struct(">8sHHI")
_ITEM = struct.Struct(">II")
_KEY = struct.Struct(">H")


class Tail(NamedTuple):
    path: str
    log: int
    records: list[SlotRecord]
    """In log order; each has its origin."""


def keep_tail(disk: Disk, folder: str, log: int, records: Sequence[SlotRecord]) -> str:
    """Write the records durably; return the file's path. Called before the truncation, and again after a crash
    between the two."""
    assert records[0].origin is not None
    if not disk.exists(folder):
        disk.make_folder(folder)
        disk.sync_folder(folder.rpartition("/")[0] or "/")
    stem = f"{log:03}-{records[0].origin.epoch:010}-{records[0].origin.offset:020}"
    taken = [int(name[len(stem) + 1 :].partition(".")[0]) for name in disk.names(folder) if name.startswith(stem)]
    number = max(taken, default=-1) + 1  # never an existing name: no log has the contents of that file
    path = join(folder, f"{stem}-{number:03}{SUFFIX}")
    _write(disk, path.removesuffix(SUFFIX) + NEW_SUFFIX, path, log, records)
    return path


def keep_rest(disk: Disk, tail: Tail, records: Sequence[SlotRecord]) -> Tail:
    """Keep only these records of a tail, durably, and delete its file if none are left."""
    if records:
        _write(disk, tail.path + REST_SUFFIX, tail.path, tail.log, records)
    else:
        forget_tail(disk, tail)
    return tail._replace(records=list(records))


def _write(disk: Disk, new: str, path: str, log: int, records: Sequence[SlotRecord]) -> None:
    """Write a tail file. `new`: its name until it is complete and durable."""
    parts = [_HEAD.pack(MAGIC, VERSION, log, len(records))]
    for record in records:
        body = _KEY.pack(len(record.key)) + record.key + record.pack()
        parts += (_ITEM.pack(len(body), crc32c(body)), body)
    if disk.exists(new):
        disk.remove(new)
    write_whole(disk, new, b"".join(parts))
    disk.rename(new, path)
    disk.sync_folder(path.rpartition("/")[0])


def kept_tails(disk: Disk, folder: str) -> list[Tail]:
    """Return every tail in a folder. An unfinished file belongs to a truncation that did not happen, and is deleted."""
    found = []
    for name in disk.names(folder) if disk.exists(folder) else []:
        path = join(folder, name)
        if name.endswith(NEW_SUFFIX):
            disk.remove(path)
        elif name.endswith(SUFFIX):
            found.append(read_tail(disk, path))
    return found


def read_tail(disk: Disk, path: str) -> Tail:
    data = read_whole(disk, path)
    if len(data) < _HEAD.size:
        raise StorageFault(f"{len(data)} bytes are fewer than the head of a kept tail", path)
    magic, version, log, count = _HEAD.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION):
        raise StorageFault("not a kept tail of version 1", path)
    try:
        records = list(_items(data))
    except ProtocolError as error:
        raise StorageFault(f"damaged: {error}", path) from error
    if len(records) != count:
        raise StorageFault(f"damaged: it holds {len(records)} mutations and says {count}", path)
    return Tail(path, log, records)


def _items(data: bytes) -> Iterator[SlotRecord]:
    at = _HEAD.size
    while at < len(data):
        if at + _ITEM.size + _KEY.size > len(data):
            raise ProtocolError(f"a mutation at byte {at} is cut short")
        size, crc = _ITEM.unpack_from(data, at)
        body = data[at + _ITEM.size : at + _ITEM.size + size]
        if len(body) < size or size < _KEY.size or crc32c(body) != crc:
            raise ProtocolError(f"the mutation at byte {at} is not what its checksum says")
        key_end = _KEY.size + _KEY.unpack_from(body)[0]
        record = unpack_record(body[_KEY.size : key_end], body[key_end:])
        if record.origin is None:
            raise ProtocolError(f"the mutation at byte {at} has no origin")
        yield record
        at += _ITEM.size + size


def forget_tail(disk: Disk, tail: Tail) -> None:
    """Delete a tail: all of it is committed, or superseded, on the leader."""
    disk.remove(tail.path)
