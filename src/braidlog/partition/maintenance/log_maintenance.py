"""Run a partition's maintenance: expire producers, apply retention, compact."""

from braidlog.model.settings import UNLIMITED, TopicSettings
from braidlog.storage.compaction.compaction import Compaction, is_compaction_due, seal_what_waits
from braidlog.storage.compaction.retention import age_ms, retain
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.state.partition_state import Shape


def is_due(shape: Shape, settings: TopicSettings, now_ms: int) -> bool:
    """Return whether retention or compaction may have work in a closed partition."""
    if not shape.size_bytes:
        return False
    return (settings.delete and _may_expire(shape, settings, now_ms)) or (
        settings.compact and _may_compact(shape, settings, now_ms)
    )


def _may_compact(shape: Shape, settings: TopicSettings, now_ms: int) -> bool:
    """Return whether `is_compaction_due` may hold. Not while any record is younger than the minimum lag."""
    if settings.compaction_lag_min_ms and now_ms - shape.newest_ms < settings.compaction_lag_min_ms:
        return False
    waited_ms = now_ms - shape.dirty_since_ms if shape.dirty_since_ms >= 0 else 0
    has_waited = settings.compaction_lag_max_ms != UNLIMITED and waited_ms > settings.compaction_lag_max_ms
    return has_waited or shape.dirty_ratio > settings.compaction_dirty_ratio


def _may_expire(shape: Shape, settings: TopicSettings, now_ms: int) -> bool:
    """Return whether `retain` would delete the first segment; without it no other is deleted."""
    full_ms = now_ms if shape.first_full_ms < 0 else shape.first_full_ms
    if settings.retention_ms != UNLIMITED and age_ms(shape.first_newest_ms, full_ms, now_ms) > settings.retention_ms:
        return True
    excess = shape.size_bytes - settings.retention_bytes if settings.retention_bytes != UNLIMITED else 0
    return shape.segments > 1 and excess >= shape.first_bytes


def maintain_log(folder: DataFolder, log: PartitionLog, now_ms: int, *, upto: int | None = None) -> None:
    """Expire producers, delete records below `upto`, and compact if due. Runs on a thread."""
    log.expire_producers(now_ms)
    retain(log, now_ms, upto=upto)
    if not log.settings.compact:
        return
    seal_what_waits(log, now_ms)
    if is_compaction_due(log, now_ms):
        Compaction(folder.disk, folder.pool, log, now_ms=now_ms, rewriter=folder.rewriter).run()
