"""An internal topic of one partition, as the log that a node keeps for itself (`model/internal_log.py`).

Knows: how such a log is made, opened, replaced and trimmed. Refuses to know: what is written to it.
Invariant: a log is made once: the folder remembers it before anything is written to it, and one that is lost or damaged is
refused until its owner has restored it or accepted the loss.
"""

from collections.abc import Awaitable, Iterator

from braidlog.cluster.local import METADATA_SETTINGS, METADATA_TOPIC, SNAPSHOT_EVERY, LocalStore, open_local_store
from braidlog.codec.section import Row
from braidlog.model.errors import StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.model.world import World
from braidlog.partition.hosting import is_hidden
from braidlog.partition.upkeep import keep_up
from braidlog.storage.folder import DataFolder
from braidlog.storage.partition import PartitionLog
from braidlog.storage.scan import rows_of


class InternalTopic:
    """An `InternalLog` in this node's folder: durable is what is on its disk."""

    def __init__(self, folder: DataFolder, log: PartitionLog, world: World) -> None:
        self._folder = folder
        self._log = log
        self._world = world

    @property
    def identity(self) -> bytes:
        return self._log.identity.topic_id

    def append(self, batch: bytes) -> int:
        return self._log.append(batch, now_ms=self._world.now_ms()).next_offset

    def is_durable(self, next_offset: int) -> bool:
        return self._log.durable_offset >= next_offset

    def durable(self, next_offset: int) -> Awaitable[None]:
        return self._world.durable(self._log, next_offset)

    def sync(self) -> None:
        self._log.sync()

    def rows(self) -> Iterator[Row]:
        return rows_of(self._log)

    def replace(self, batch: bytes) -> None:
        """In a segment of its own, so that those before it can go; durable before they do."""
        self._log.roll(self._world.now_ms())
        next_offset = self.append(batch)
        self._log.sync()
        self._log.advance_start(next_offset - 1)

    def trim(self) -> None:
        keep_up(self._folder, self._log, self._world.now_ms())

    def close(self) -> None:
        self._log.close()


def open_internal_topic(folder: DataFolder, name: str, settings: TopicSettings, world: World) -> InternalTopic:
    """The folder's topic of this name; made if it never was there."""
    if folder.find(name) is None:
        if name in folder.identity.internal_topics:
            raise StorageFault(_lost(folder, name), folder.path)
        folder.create_topic(name, 1, settings)
    if name not in folder.identity.internal_topics:
        folder.remember_internal(name)
    log = folder.open_partition(name, 0)
    if log.damages:
        raise StorageFault(f"internal topic {name!r} is damaged: {log.damages[0]}; see `braid log repair`")
    return InternalTopic(folder, log, world)


def open_metadata(folder: DataFolder, world: World, *, node: str, snapshot_every: int = SNAPSHOT_EVERY) -> LocalStore:
    """The metadata that a single node keeps in its own folder."""
    log = open_internal_topic(folder, METADATA_TOPIC, METADATA_SETTINGS, world)
    topics = [meta for meta in folder.topics() if not is_hidden(meta.name)]
    return open_local_store(log, world, node=node, topics=topics, snapshot_every=snapshot_every)


def _lost(folder: DataFolder, name: str) -> str:
    unreadable = "; ".join(f"topics/{each}: {why}" for each, why in folder.broken_topics.items())
    return (
        f"internal topic {name!r} was made in this folder and is lost: {unreadable or 'its folder is not there'}; "
        f"restore it from a backup, or go on without all that was in it: `braid log accept-loss {folder.path} {name}`"
    )
