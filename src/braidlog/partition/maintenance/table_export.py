"""Select the segments of a partition to export to its topic's table.

Invariant: only whole sealed segments are exported, and only if every transaction in them has ended and every record
is committed: a row is never removed again.
"""

from itertools import takewhile

from braidlog.model.settings import UNLIMITED, TopicSettings
from braidlog.partition.partition import Partition
from braidlog.storage.compaction.compaction import compaction_limit
from braidlog.storage.compaction.compaction_merge import Source
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.segment.segment import Segment
from braidlog.tables.plan import Part


def may_export(hosted: Partition, settings: TopicSettings, turned: int, now_ms: int) -> bool:
    """Return whether there may be something to export; does not open a closed log to find out."""
    if hosted.damages or not hosted.is_settled or hosted.high_watermark <= turned:
        return False
    return hosted.is_open or hosted.segment_count > 1 or _has_waited(hosted.newest_timestamp_ms, settings, now_ms)


def plan_part(hosted: Partition, turned: int, bytes_max: int, now_ms: int) -> tuple[Part, bool]:
    """Select segments with records from `turned` on: the first of any size, more up to `bytes_max`.

    Runs on a thread.

    Also returns whether more segments are ready.
    """
    log = hosted.open_log or hosted.log
    log.turned_offset = max(log.turned_offset, turned)
    _seal_what_waits(log, turned, now_ms)
    closed = [each for each in log.segments[:-1] if each.next_offset > turned]
    if not closed:
        return Part(hosted.number, log.start_offset, [], []), False
    log.sync(closed[-1].next_offset)
    with log.lock:
        limit = compaction_limit(log)
        closed = [each for each in log.segments[:-1] if each.next_offset > turned]
        ready = list(takewhile(lambda each: each.next_offset <= limit, closed))
        taken: list[Segment] = []
        size = 0
        for each in ready:
            if taken and size + each.data_bytes > bytes_max:
                break
            taken.append(each)
            size += each.data_bytes
        sources = [
            Source(each.path, each.base_offset, each.next_offset, each.size, each.head.generation, each.head.created_ms)
            for each in taken
        ]
        aborted = log.aborted_in(sources[0].base_offset, sources[-1].next_offset) if sources else []
        return Part(hosted.number, log.start_offset, sources, aborted), len(taken) < len(ready)


def _seal_what_waits(log: PartitionLog, turned: int, now_ms: int) -> None:
    with log.lock:
        active = log.segments[-1]
        has_new = active.data_bytes and active.next_offset > turned
        if has_new and _has_waited(active.head.created_ms, log.settings, now_ms):
            log.roll(now_ms)


def _has_waited(since_ms: int, settings: TopicSettings, now_ms: int) -> bool:
    return settings.table_lag_ms != UNLIMITED and now_ms - since_ms > settings.table_lag_ms
