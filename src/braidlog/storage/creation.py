"""The folder of a new, empty partition."""

from braidlog.model.settings import TopicSettings
from braidlog.storage.checkpoints import STATE_MAGIC
from braidlog.storage.files import Disk
from braidlog.storage.head import Identity, SegmentHead
from braidlog.storage.pool import FilePool
from braidlog.storage.segment import Segment
from braidlog.storage.slots import SlotPair
from braidlog.storage.state import StateImage, encode_image


def create_partition(
    disk: Disk,
    folder: str,
    identity: Identity,
    settings: TopicSettings,
    pool: FilePool,
    *,
    now_ms: int,
    begun: int = 0,
) -> None:
    """Make it. The caller syncs the folder above it. `begun`: the last save of begun epochs, none of which is about this one."""
    disk.make_folder(folder)
    segment = Segment.create(disk, folder, SegmentHead(identity, 0, now_ms, 0), pool, settings.index_interval_bytes)
    segment.sync_file()
    segment.retire()
    slots = SlotPair(disk, folder, "state", STATE_MAGIC)
    slots.save(encode_image(StateImage(start_offset=0, end_offset=0, begun=begun)), copies=2)
    disk.sync_folder(folder)
