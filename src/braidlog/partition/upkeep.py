"""Keep a partition's log small: forgotten producers, retention, compaction."""

from braidlog.storage.compaction import Compaction, is_compaction_due, seal_what_waits
from braidlog.storage.folder import DataFolder
from braidlog.storage.partition import PartitionLog
from braidlog.storage.retention import retain


def keep_up(folder: DataFolder, log: PartitionLog, now_ms: int, *, upto: int | None = None) -> None:
    """On a thread: let go what may go, below `upto` alone; compact where that is due."""
    log.expire_producers(now_ms)
    retain(log, now_ms, upto=upto)
    if not log.settings.compact:
        return
    seal_what_waits(log, now_ms)
    if is_compaction_due(log, now_ms):
        Compaction(folder.disk, folder.pool, log, now_ms=now_ms, rewriter=folder.rewriter).run()
