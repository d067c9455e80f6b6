"""Reads a closed segment from the disk and verifies every batch.

Invariant: reads bypass cached pages, and leave none behind. The node verifies any damage again before it acts on it.
"""

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, File
from braidlog.storage.segment.batch_scan import CHECK_WINDOW_BYTES, Gap, walk_past
from braidlog.storage.segment.segment_files import DATA_START, read_generation
from braidlog.storage.state.partition_state import EpochHistory
from braidlog.worker.jobs import Scrubbed, ScrubSegment

DAMAGES_MAX = 100
"""Maximum damages per job; the next job continues after the last one."""


def scrub(job: ScrubSegment, disk: Disk) -> Scrubbed:
    try:
        file = disk.open(job.path, writable=False)
    except StorageFault as fault:
        # Retention and compaction delete segments: a missing file is no fault.
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
    for found in walk_past(file, start, size, offset, epochs=epochs):
        if isinstance(found, Gap):
            damaged.append(found.bad.offset)
            position, offset = found.end, found.bad.offset if found.next_offset is None else found.next_offset
        else:
            position, offset = found.position + found.header.size_bytes, found.header.next_offset
        if position - start >= job.bytes_max or len(damaged) >= DAMAGES_MAX:
            break
    file.forget(start, position - start)
    return Scrubbed(generation, position, offset, position - start, is_end=position >= size, damaged=damaged)
