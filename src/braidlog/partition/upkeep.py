"""Keep a partition's log small: forgotten producers, retention, compaction."""

from braidlog.storage.compaction import Compaction, dirty_ratio
from braidlog.storage.folder import DataFolder
from braidlog.storage.partition import PartitionLog
from braidlog.storage.retention import retain

COMPACT_DIRTY_RATIO = 0.5


def keep_up(folder: DataFolder, log: PartitionLog, now_ms: int, *, upto: int | None = None) -> None:
    """On a thread: let go what may go, below `upto` alone; compact where more than half of what is sealed is new."""
    log.expire_producers(now_ms)
    retain(log, now_ms, upto=upto)
    if log.settings.compact and dirty_ratio(log) > COMPACT_DIRTY_RATIO:
        Compaction(folder.disk, folder.pool, log, now_ms=now_ms, rewriter=folder.rewriter).run()
