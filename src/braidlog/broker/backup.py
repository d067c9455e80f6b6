"""Creates the consistent snapshot of a node's data folder that a backup copies.

The snapshot is taken in one turn of the event loop, so that no append falls between its files. Another process
copies it (`tools/backup/`); `storage/folder/folder_snapshot.py` decides which files it contains.
Invariant: at most one snapshot exists; the next snapshot and the next start replace it. Its files use additional
disk space only after retention or compaction has deleted the originals.
"""

import logging
from typing import Final

from braidlog.broker.keys.key_service import KeyValue
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.folder.folder_snapshot import (
    SnapshotBuilder,
    SnapshotFile,
    drop_snapshot,
    make_room,
    write_listing,
)

log = logging.getLogger("braidlog.broker")

KEY_VALUE_FOLDER: Final = "kv"
_CUT = "the cut"


class Snapshots:
    """Creates and deletes the snapshot that a backup copies."""

    def __init__(self, folder: DataFolder, keyvalue: KeyValue, metadata: Metadata, runtime: Runtime) -> None:
        self._folder = folder
        self._keyvalue = keyvalue
        self._metadata = metadata
        self._runtime = runtime
        self._turns = KeyedLock(runtime)
        drop_snapshot(folder.disk, folder.path)

    async def create(self) -> str:
        """Create a snapshot in the data folder and return its folder. The caller calls `drop` after copying it."""
        if not self._metadata.is_alone:
            raise BrokerError(
                Reason.INVALID_SETTING,
                "a node of a cluster is not backed up by itself: its topics have replicas on other nodes, and a cut of one is no "
                "moment of the others. Mirror the topics to a node that is alone (MirrorMaker 2) and back that one up, or stop "
                "all nodes, copy their folders and bring them back with `braid cluster recover`",
            )
        disk, path = self._folder.disk, self._folder.path
        async with self._turns.acquire(_CUT):
            try:
                await self._runtime.blocking(lambda: make_room(disk, path))
                cutting = SnapshotBuilder(disk, path, self._folder.pool)
                now_ms = self._runtime.now_ms()
                await self._runtime.blocking(lambda: cutting.prepare(now_ms))
                files = self._cut(cutting)
                return await self._runtime.blocking(lambda: write_listing(disk, path, files))
            except StorageFault as fault:  # of the snapshot: no file in use has changed
                raise BrokerError(Reason.UNAVAILABLE, f"no cut can be taken: {fault}") from fault

    def _cut(self, cutting: SnapshotBuilder) -> list[SnapshotFile]:
        """Take the snapshot in one turn of the event loop, so that no append runs during it."""
        began = self._runtime.monotonic()
        store = self._keyvalue.store
        cutting.take_topics()
        with store.wal.held_still():
            cutting.take_keys(KEY_VALUE_FOLDER)
        milliseconds = (self._runtime.monotonic() - began) * 1000
        log.info("a cut of %d files for a back-up, taken in %.1f ms", len(cutting.files), milliseconds)
        return cutting.files

    async def drop(self) -> None:
        """Delete the snapshot: it was copied, or is not needed."""
        async with self._turns.acquire(_CUT):
            await self._runtime.blocking(lambda: drop_snapshot(self._folder.disk, self._folder.path))
