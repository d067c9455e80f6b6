"""Quarantine: keep bytes that a repair removes from a log.

Bytes and their report are durable before the original changes. Files of earlier repairs are never overwritten.

`<data>/quarantine/<topic>-<partition>-<base offset>-<position>.bin` contains the bytes; the `.json` with the same name
is the report with their location. The report is written last: bytes without a report come from an interrupted repair,
and are rewritten.
"""

import hashlib
from contextlib import closing

import msgspec

from braidlog.storage.files import Disk, File, join, read_whole, write_whole

_CHUNK_BYTES = 1024 * 1024
_COPIES_MAX = 10_000


class QuarantineReport(msgspec.Struct, kw_only=True):
    """Report of quarantined bytes."""

    topic: str
    partition: int
    file: str
    position: int
    end: int
    first_offset: int
    next_offset: int
    why: str
    taken_out_ms: int
    sha256: str = ""


def keep_bytes(disk: Disk, data_folder: str, stem: str, source: File, report: QuarantineReport) -> str:
    """Copy bytes [position, end) of `source` durably to quarantine; return the name there."""
    folder = join(data_folder, "quarantine")
    if not disk.exists(folder):
        disk.make_folder(folder)
        disk.sync_folder(data_folder)
    report.end = min(report.end, source.size())
    report.sha256 = _digest(source, report.position, report.end)
    for copy in range(_COPIES_MAX):
        name = stem if copy == 0 else f"{stem}.{copy}"
        path = join(folder, name + ".json")
        if not disk.exists(path):
            _copy(disk, join(folder, name + ".bin"), source, report.position, report.end)
            disk.sync_folder(folder)
            _write(disk, path, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
            disk.sync_folder(folder)
            return name + ".bin"
        if _is_same(disk, path, report):
            return name + ".bin"
    raise AssertionError(f"{_COPIES_MAX} repairs of the same bytes")


def _digest(source: File, position: int, end: int) -> str:
    digest = hashlib.sha256()
    for at in range(position, end, _CHUNK_BYTES):
        digest.update(source.read_at(min(_CHUNK_BYTES, end - at), at))
    return digest.hexdigest()


def _is_same(disk: Disk, path: str, report: QuarantineReport) -> bool:
    """Return whether an interrupted repair has already copied the same bytes."""
    try:
        earlier = msgspec.json.decode(read_whole(disk, path), type=QuarantineReport)
    except msgspec.MsgspecError:
        return False
    return earlier.sha256 == report.sha256 and earlier.end - earlier.position == report.end - report.position


def copy_file(disk: Disk, path: str, copy: str) -> None:
    """Copy and sync a file; the caller makes the new name durable."""
    with closing(disk.open(path, writable=False)) as source:
        _copy(disk, copy, source, 0, source.size())


def _copy(disk: Disk, path: str, source: File, position: int, end: int) -> None:
    if disk.exists(path):
        disk.remove(path)
    with closing(disk.create(path)) as file:
        for at in range(position, end, _CHUNK_BYTES):
            file.write_at(source.read_at(min(_CHUNK_BYTES, end - at), at), at - position)
        file.sync()


def _write(disk: Disk, path: str, data: bytes) -> None:
    """Write the report atomically: its existence means that the bytes are complete."""
    building = path + ".new"
    if disk.exists(building):
        disk.remove(building)
    write_whole(disk, building, data)
    disk.rename(building, path)
