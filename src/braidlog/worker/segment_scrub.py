"""Reads a closed segment from disk and verifies every batch.

Reads bypass the page cache, and leave no pages in it. Does not handle: damage; the node verifies it again before
acting.
"""

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, File
from braidlog.storage.segment.batch_scan import CHECK_WINDOW_BYTES, Gap, walk_past
from braidlog.storage.segment.segment_files import DATA_START, read_generation
from braidlog.storage.state.partition_state import EpochHistory
from braidlog.worker.jobs import Scrubbed, ScrubSegment

DAMAGES_MAX = 100
"""Bytes per job; the next job continues after them."""


def scrub(job: ScrubSegment, disk: Disk) -> Scrubbed:
    try:
        file = disk.open(job.path, writable=False)
    except StorageFault as fault:
        # Retention and compaction remove segments: that is not an error.
        return _ended(job, str(fault) if disk.exists(job.path) else "")
    try:
        return _walk(job, file)
    except StorageFault as fault:
        return _ended(job, str(fault))
    finally:
        file.close()


def _ended(job: ScrubSegment, fault: str) -> Scrubbed:
    return Scrubbed(job.generation, job.position, job.offset, 0, is_end=True, fault=fault)


def _walk(job: ScrubSegment, file: File) -> Scrubbed:
    size, generation = file.size(), read_generation(file.read_at(DATA_START, 0))
    start, offset = job.position, job.offset
    if generation != job.generation or start < DATA_START:
        start, offset = DATA_START, job.base_offset
    file.forget(start, job.bytes_max + CHECK_WINDOW_BYTES)
    position = start
    damaged: list[int] = []
    epochs = EpochHistory(job.epochs) if job.epochs else None
    for step in walk_past(file, start, size, offset, epochs=epochs):
        if isinstance(step, Gap):
            damaged.append(step.bad.offset)
            position, offset = step.end, step.bad.offset if step.next_offset is None else step.next_offset
        else:
            position, offset = step.position + step.header.size_bytes, step.header.next_offset
        if position - start >= job.bytes_max or len(damaged) >= DAMAGES_MAX:
            break
    file.forget(start, position - start)
    return Scrubbed(generation, position, offset, position - start, is_end=position >= size, damaged=damaged)
