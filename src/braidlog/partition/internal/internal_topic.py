"""An internal topic with one partition, as the log of a node's own data, such as its metadata.

It implements `InternalLog` of `model/runtime/runtime.py`.

Invariant: a log is created once. The folder records it before its first write, and a lost or damaged log is rejected
until the operator has restored it or accepted the loss.
"""

from collections.abc import Awaitable, Callable, Iterator

from braidlog.cluster.metadata.local_store import (
    METADATA_SETTINGS,
    METADATA_TOPIC,
    SNAPSHOT_EVERY,
    LocalStore,
    open_local_store,
)
from braidlog.codec.batch.records_section import Row
from braidlog.model.errors import StorageFault
from braidlog.model.runtime.runtime import Runtime
from braidlog.model.settings import TopicSettings
from braidlog.partition.internal.mirrored_log import MirroredLog
from braidlog.partition.partition_registry import is_hidden
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.log.record_iteration import rows_of


class InternalTopic:
    """An `InternalLog` in this node's folder.

    A record is durable once it is in the log on disk; the mirror copy follows.
    """

    def __init__(self, pair: MirroredLog, runtime: Runtime) -> None:
        self._log = pair.log
        self._copy = pair.copy
        self._runtime = runtime

    def append(self, batch: bytes) -> int:
        now_ms = self._runtime.now_ms()
        appended = self._log.append(batch, now_ms=now_ms)
        self._to_copy(lambda copy: copy.append(batch, now_ms=now_ms))
        self._to_copy(self._runtime.appended)
        return appended.next_offset

    def _to_copy(self, work: Callable[[PartitionLog], object]) -> None:
        """Apply an operation to the mirror copy too."""
        if self._copy is not None:
            try:
                work(self._copy)
            except StorageFault:
                self._copy = None  # full or damaged: the log continues without it, and the next start recreates it

    def durable(self, next_offset: int) -> Awaitable[None]:
        return self._runtime.durable(self._log, next_offset)

    def sync(self) -> None:
        self._log.sync()
        self._to_copy(PartitionLog.sync)

    def rows(self) -> Iterator[Row]:
        return rows_of(self._log)

    def replace(self, batch: bytes) -> None:
        """Replace the content by `batch` in its own segment; it is durable before the older segments are removed."""
        now_ms = self._runtime.now_ms()
        self._log.roll(now_ms)
        self._to_copy(lambda copy: copy.roll(now_ms))
        next_offset = self.append(batch)
        self.sync()
        self._log.advance_start(next_offset - 1)
        self._to_copy(lambda copy: copy.advance_start(next_offset - 1))

    def close(self) -> None:
        self._log.close()
        self._to_copy(PartitionLog.close)


def open_internal_topic(folder: DataFolder, name: str, settings: TopicSettings, runtime: Runtime) -> InternalTopic:
    """Open the internal topic of this name; create it if it never existed."""
    if folder.find(name) is None:
        if name in folder.identity.internal_topics:
            raise StorageFault(_lost(folder, name), folder.path)
        folder.create_topic(name, 1, settings)
    if name not in folder.identity.internal_topics:
        folder.remember_internal(name)
    return InternalTopic(MirroredLog(folder, name), runtime)


def open_metadata(
    folder: DataFolder, runtime: Runtime, *, node: str, snapshot_every: int = SNAPSHOT_EVERY
) -> LocalStore:
    """Open the metadata that a standalone node keeps in its own folder."""
    log = open_internal_topic(folder, METADATA_TOPIC, METADATA_SETTINGS, runtime)
    topics = [meta for meta in folder.topics() if not is_hidden(meta.name)]
    return open_local_store(log, runtime, node=node, topics=topics, snapshot_every=snapshot_every)


def _lost(folder: DataFolder, name: str) -> str:
    unreadable = "; ".join(f"topics/{each}: {why}" for each, why in folder.broken_topics.items())
    return (
        f"internal topic {name!r} was made in this folder and is lost: {unreadable or 'its folder is not there'}; "
        f"restore it from a backup, or continue without its contents: `braid log accept-loss {folder.path} {name}`"
    )
