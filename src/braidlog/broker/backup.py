"""A back-up begins with a cut: the data folder of a node at one moment, kept until it is copied.

Knows: when a cut can be taken, and that it is taken in one turn of the loop. Refuses to know: which files it is made of
(`storage/folder/folder_snapshot.py`), where they are copied to: that is done by another process (`tools/backup/`).
Invariant: there is at most one cut; the next one takes its place, and so does the next start. What it keeps costs no room until
retention or compaction would have freed it.
"""

import logging
from typing import Final

from braidlog.broker.keys.key_service import KeyValue
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.folder.folder_snapshot import CutFile, Cutting, drop_snapshot, make_room, write_listing

log = logging.getLogger("braidlog.broker")

KEY_VALUE_FOLDER: Final = "kv"
_CUT = "the cut"


class Snapshots:
    """The use case."""

    def __init__(self, folder: DataFolder, keyvalue: KeyValue, metadata: Metadata, runtime: Runtime) -> None:
        self._folder = folder
        self._keyvalue = keyvalue
        self._metadata = metadata
        self._runtime = runtime
        self._turns = KeyedLock(runtime)
        drop_snapshot(folder.disk, folder.path)

    async def create(self) -> str:
        """The folder of a new cut, in the data folder. Whoever copies it says `drop` then."""
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
                cutting = Cutting(disk, path, self._folder.pool)
                now_ms = self._runtime.now_ms()
                await self._runtime.blocking(lambda: cutting.prepare(now_ms))
                files = self._cut(cutting)
                return await self._runtime.blocking(lambda: write_listing(disk, path, files))
            except StorageFault as fault:  # of the cut: nothing that is in use has changed
                raise BrokerError(Reason.UNAVAILABLE, f"no cut can be taken: {fault}") from fault

    def _cut(self, cutting: Cutting) -> list[CutFile]:
        """In one turn of the loop: nothing is appended meanwhile."""
        began = self._runtime.monotonic()
        store = self._keyvalue.store
        cutting.take_topics()
        with store.wal.held_still():
            cutting.take_keys(KEY_VALUE_FOLDER)
        milliseconds = (self._runtime.monotonic() - began) * 1000
        log.info("a cut of %d files for a back-up, taken in %.1f ms", len(cutting.files), milliseconds)
        return cutting.files

    async def drop(self) -> None:
        """It was copied, or nobody wants it."""
        async with self._turns.acquire(_CUT):
            await self._runtime.blocking(lambda: drop_snapshot(self._folder.disk, self._folder.path))
