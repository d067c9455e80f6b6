"""Copy a snapshot of a data folder into a backup store; only new data is copied.

A file that is shorter than at the time of the snapshot fails the backup.
"""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime

import msgspec

from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.files import Disk, join, read_whole
from braidlog.storage.folder.data_folder import FOLDER_MAGIC, FolderIdentity
from braidlog.storage.folder.folder_snapshot import LISTING, SnapshotFile
from braidlog.storage.two_copy_file import unpack_copy
from braidlog.tools.backup.manifest import PIECE_BYTES, BackupFile, Manifest, Piece
from braidlog.tools.backup.store import BackupStore

Progress = Callable[[int], None]
"""progress(number of bytes), called after each piece."""


def advance(progress: Progress | None, done: int) -> None:
    if progress is not None:
        progress(done)


def read_listing(disk: Disk, cut: str) -> list[SnapshotFile]:
    """Return the files of a snapshot. Raises `StorageFault` if they are not readable."""
    try:
        return msgspec.msgpack.decode(read_whole(disk, join(cut, LISTING)), type=list[SnapshotFile])
    except StorageFault as fault:
        raise BrokerError(
            Reason.FOLDER_NOT_FOUND,
            f"the node's files are not readable ({fault}): run this command on the machine of the node, as the node's user",
        ) from fault


def create_backup(  # noqa: PLR0913 - what is copied, where to, how
    disk: Disk,
    store: BackupStore,
    cut: str,
    files: list[SnapshotFile],
    *,
    version: str,
    now_ms: int,
    full: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Create a backup of the snapshot in the folder `cut`. `full`: read every byte, and compare it with existing pieces."""
    identity = _identity(files)
    with store.writing():
        known = {} if full else _known(store, identity)
        kept, added = [], 0
        for file in files:
            before = known.get(file.path)
            if before is not None and _is_same(file, before) and all(map(store.has, before.pieces)):
                kept.append(before)
                advance(progress, file.size)
            else:
                copied, new_bytes = _copy(disk, store, cut, file, progress, full=full)
                kept.append(copied)
                added += new_bytes
        manifest = Manifest(
            backup=_fresh_id(store, now_ms),
            folder_id=identity,
            braidlog=version,
            created_ms=now_ms,
            added_bytes=added,
            files=kept,
        )
        store.finish(manifest)
        return manifest


def _identity(files: list[SnapshotFile]) -> str:
    """Return the identity of the data folder. Without one, a restored folder could not be opened."""
    for file in files:
        if file.path in ("folder.a", "folder.b"):
            try:
                slot = unpack_copy(FOLDER_MAGIC, file.path, file.head)
                return msgspec.json.decode(slot.payload, type=FolderIdentity).folder_id
            except (ValueError, msgspec.MsgspecError):
                continue
    raise StorageFault("the data folder has no identity; see `braid log verify`")


def _known(store: BackupStore, identity: str) -> dict[str, BackupFile]:
    """Return the files of the newest readable backup of the same folder."""
    for backup in reversed(store.finished()):
        try:
            manifest = store.read_manifest(backup)
        except StorageFault:
            continue  # `braid backup verify` reports it; here its data is only read again
        if manifest.folder_id == identity:
            return {file.path: file for file in manifest.files}
    return {}


def _is_same(file: SnapshotFile, before: BackupFile) -> bool:
    """Return whether the file is unchanged since a backup: complete, with the same size and time."""
    return file.is_final and before.is_final and (file.size, file.modified_ns) == (before.size, before.modified_ns)


def _copy(
    disk: Disk, store: BackupStore, cut: str, file: SnapshotFile, progress: Progress | None, *, full: bool
) -> tuple[BackupFile, int]:
    pieces: list[Piece] = []
    added = 0
    advance(progress, len(file.head))
    if file.kept:
        with closing(disk.open(join(cut, file.kept), writable=False)) as source:
            at = len(file.head)
            while at < file.size:
                data = source.read_at(min(PIECE_BYTES, file.size - at), at)
                if not data:
                    raise StorageFault(
                        f"the file ends at {at} instead of {file.size} bytes: run the backup again", file.path
                    )
                piece, new_bytes = store.put(data, doubts=full)
                pieces.append(piece)
                added += new_bytes
                at += len(data)
                advance(progress, len(data))
    return BackupFile(file.path, file.size, file.modified_ns, file.head, pieces, file.is_final), added


def _fresh_id(store: BackupStore, now_ms: int) -> str:
    """Return an id that sorts after all existing ones, even if the clock went back."""
    newest = max(store.finished(), default="")
    while True:
        moment = datetime.fromtimestamp(now_ms / 1000, tz=UTC)
        found = f"{moment:%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z"
        if found > newest:
            return found
        now_ms = 1 + int(datetime.strptime(newest, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC).timestamp() * 1000)
