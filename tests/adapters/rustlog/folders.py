"""Data folders as a node finds them: records that came through other doors, damage, roles, a log whose beginning is gone."""

import shutil
from pathlib import Path

from tests.model.manual_world import ManualRuntime

from braidlog.cluster.metadata.events import ChangeLeader
from braidlog.model.clock import SystemClock
from braidlog.model.settings import TopicSettings
from braidlog.partition.internal.internal_topic import open_metadata
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.testing.clock import ManualClock


def write_topic(path: Path, topic: str, *batches: bytes, start: int = 0, settings: TopicSettings | None = None) -> None:
    """A topic of one partition with these batches in it, readable from `start` on."""
    folder = DataFolder(OsDisk(), str(path), SystemClock())
    folder.create_topic(topic, 1, settings or TopicSettings())
    log = folder.open_partition(topic, 0)
    for batch in batches:
        log.append(batch, now_ms=1)
    log.advance_start(start)
    log.close()
    folder.release()


def follow(path: Path, topic: str) -> None:
    """Make the node a follower of a topic's first partition."""
    folder = DataFolder(OsDisk(), str(path), SystemClock())
    store = open_metadata(folder, ManualRuntime(ManualClock()), node="0")
    store.load()
    store.write_durably([ChangeLeader(topic=topic, partition=0, leader_id="", leader_epoch=1)])
    store.close()
    folder.release()


def partition_folder(path: Path, topic: str) -> Path:
    folder = DataFolder(OsDisk(), str(path), SystemClock())
    try:
        return Path(folder.partition_folder(topic, 0))
    finally:
        folder.release()


def damage(path: Path, topic: str) -> None:
    """Change a byte in the middle of a topic's only segment."""
    (segment,) = partition_folder(path, topic).glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)


def lose(path: Path, topic: str) -> None:
    """Take a topic's only partition away."""
    shutil.rmtree(partition_folder(path, topic))
