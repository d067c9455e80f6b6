"""Verify a backup, and restore a data folder from it.

A restore is atomic: until it is complete the folder has a file `restoring` and no identity, and nodes refuse it. The
identity is written when everything else is durable.
"""

from collections.abc import Iterable
from contextlib import closing
from typing import Final

import msgspec

from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.files import Disk, join, parent, write_whole
from braidlog.tools.backup.copying import Progress, advance
from braidlog.tools.backup.manifest import BackupFile, Manifest, Piece
from braidlog.tools.backup.store import BackupStore

RESTORING: Final = "restoring"
_DESCRIPTION = ("folder.a", "folder.b")
_NEW = ".new"


class BackupFault(msgspec.Struct, frozen=True):
    """A file of a backup that cannot be restored."""

    path: str
    why: str


class BackupReport(msgspec.Struct, frozen=True):
    """Output of `braid backup verify -o json`."""

    backup: str
    files: int
    size: int
    faults: list[BackupFault]

    @property
    def sound(self) -> bool:
        return not self.faults


def verify_backup(store: BackupStore, manifest: Manifest, progress: Progress | None = None) -> BackupReport:
    """Verify every byte of a backup."""
    faults = []
    good: set[Piece] = set()
    for file in manifest.files:
        advance(progress, len(file.head))
        try:
            for piece in file.pieces:
                if piece not in good:
                    store.read(piece)
                    good.add(piece)
                advance(progress, piece.size)
        except StorageFault as fault:
            faults.append(BackupFault(file.path, str(fault)))
    return BackupReport(manifest.backup, len(manifest.files), manifest.size, faults)


def restore_backup(
    disk: Disk, store: BackupStore, manifest: Manifest, data: str, progress: Progress | None = None
) -> None:
    """Restore a data folder from a backup. `data` must not exist, or be empty."""
    _check_empty(disk, data)
    for folder in _missing(disk, data):
        disk.make_folder(folder)
        disk.sync_folder(parent(folder))
    lock = disk.lock(join(data, "LOCK"))
    try:
        _check_empty(disk, data)
        write_whole(disk, join(data, RESTORING), manifest.backup.encode())
        disk.sync_folder(data)
        folders: set[str] = set()
        for file in manifest.files:
            folders |= _write(disk, store, data, file, progress)
        for folder in sorted(folders, reverse=True):
            disk.sync_folder(folder)
        for name in _DESCRIPTION:
            if disk.exists(join(data, name + _NEW)):
                disk.rename(join(data, name + _NEW), join(data, name))
        disk.sync_folder(data)
        disk.remove(join(data, RESTORING))
        disk.sync_folder(data)
    finally:
        lock.release()


def _check_empty(disk: Disk, data: str) -> None:
    if not disk.exists(data):
        return
    names = [name for name in disk.names(data) if name != "LOCK"]
    if RESTORING in names and not {*_DESCRIPTION} & {*names}:
        raise BrokerError(
            Reason.FOLDER_IN_USE, f"a restore into {data} was interrupted: empty the folder and restore again"
        )
    if names:
        raise BrokerError(
            Reason.FOLDER_IN_USE, f"{data} is not empty ({', '.join(names[:3])}): restore into an empty folder"
        )


def _missing(disk: Disk, path: str) -> Iterable[str]:
    """Yield the folders to create, parents first."""
    return () if disk.exists(path) else (*_missing(disk, parent(path)), path)


def _write(disk: Disk, store: BackupStore, data: str, file: BackupFile, progress: Progress | None) -> set[str]:
    """Write and sync a file; return the folders with new names."""
    place = join(data, file.path + _NEW if file.path in _DESCRIPTION else file.path)
    folders = {*_missing(disk, parent(place))}
    for folder in sorted(folders):
        disk.make_folder(folder)
    with closing(disk.create(place)) as made:
        made.write_at(file.head, 0)
        advance(progress, len(file.head))
        at = len(file.head)
        for piece in file.pieces:
            made.write_at(store.read(piece), at)
            at += piece.size
            advance(progress, piece.size)
        made.sync()
    return {*folders, parent(place), *map(parent, folders)}
