"""Let old records go: by age and by size.

Knows: which whole segments are too old or too many. Refuses to know: keys (compaction), when to run (the owner decides).
Invariant: only durable segments from the front go, and the new start is durable before they do; offsets are never reused. Of a
topic with a table none goes by age before its records are rows. By size it does: a table that cannot be written must not fill
the disk.
"""

from itertools import pairwise

from braidlog.model.settings import UNLIMITED, TableForm
from braidlog.storage.log.partition_log import PartitionLog


def retain(partition: PartitionLog, now_ms: int, *, upto: int | None = None) -> int:
    """Apply the topic's retention to records below `upto` (default: all that is committed); return the new start offset."""
    settings = partition.settings
    if not settings.delete or (settings.retention_ms == UNLIMITED and settings.retention_bytes == UNLIMITED):
        return partition.start_offset
    with partition.lock:
        active = partition.segments[-1]
        if (
            settings.retention_ms != UNLIMITED
            and age_ms(active.max_timestamp_ms, now_ms, now_ms) > settings.retention_ms
        ):
            partition.roll(now_ms)  # else a topic nobody writes to any more would keep its last segment for ever
    partition.sync()
    limit = retention_limit(partition) if upto is None else min(upto, retention_limit(partition))
    start = partition.start_offset
    kept_from = partition.turned_offset if settings.table is not TableForm.OFF else limit
    excess = partition.size_bytes - settings.retention_bytes if settings.retention_bytes != UNLIMITED else 0
    for segment, following in pairwise(partition.segments):
        if segment.next_offset > limit:
            break
        written_ms = following.head.created_ms
        age = age_ms(segment.max_timestamp_ms, written_ms, now_ms)
        too_old = settings.retention_ms != UNLIMITED and age > settings.retention_ms
        if excess < segment.data_bytes and not (too_old and segment.next_offset <= kept_from):
            break
        excess -= segment.data_bytes
        start = segment.next_offset
    return partition.advance_start(start)


def retention_limit(partition: PartitionLog) -> int:
    """A start above what is committed could be above what every other replica has."""
    return min(partition.durable_offset, partition.watermark)


def age_ms(latest_ms: int, written_ms: int, now_ms: int) -> int:
    """How old a segment is: by its records' word, unless they have none or claim the future; then by when it was full.

    Not by the earlier of both: a clock that was set wrong when the segment was full must not cost records their time.
    """
    if 0 <= latest_ms <= now_ms:
        return now_ms - latest_ms
    return now_ms - written_ms if written_ms > 0 else 0  # 0: the head was damaged, and does not say
