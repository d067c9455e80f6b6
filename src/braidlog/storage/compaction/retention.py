"""Delete old records by age and by size.

Invariants: only whole, durable segments at the front are deleted, after the new start is durable; offsets are never
reused. A topic with a table deletes nothing by age before it is exported. Deletion by size does not wait for the
export: a table that cannot be written must not fill the disk.
"""

from itertools import pairwise

from braidlog.model.settings import UNLIMITED, TableForm
from braidlog.storage.log.partition_log import PartitionLog


def retain(partition: PartitionLog, now_ms: int, *, upto: int | None = None) -> int:
    """Apply the topic's retention to records below `upto` (default: all committed ones).

    Return the new start offset.
    """
    settings = partition.settings
    if not settings.delete or (settings.retention_ms == UNLIMITED and settings.retention_bytes == UNLIMITED):
        return partition.start_offset
    with partition.lock:
        active = partition.segments[-1]
        if (
            settings.retention_ms != UNLIMITED
            and age_ms(active.max_timestamp_ms, now_ms, now_ms) > settings.retention_ms
        ):
            partition.roll(now_ms)  # otherwise a topic without new records would keep its last segment indefinitely
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
    """Return the limit of retention, the committed offset.

    A log start above it could be above what every other replica has.
    """
    return min(partition.durable_offset, partition.watermark)


def age_ms(latest_ms: int, written_ms: int, now_ms: int) -> int:
    """Return the age of a segment, by its latest timestamp.

    If that is missing or in the future, the time when it became full counts.

    Not by the earlier of both: a clock that was wrong when the segment became full must not delete records early.
    """
    if 0 <= latest_ms <= now_ms:
        return now_ms - latest_ms
    return now_ms - written_ms if written_ms > 0 else 0  # 0: the header was damaged and has no time
