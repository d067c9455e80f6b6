"""Reset a replica's log to another offset, because its leader's log begins beyond its end or because it is damaged.

Invariants: called only while both checkpoints contain the intent, so after a crash the reset starts again. A damaged
copy is kept until another one replaces it or an operator removes it.

  00000000000000000042.log.1763298720000.damaged      a segment of a damaged copy, quarantined at that time (ms)
"""

from typing import NamedTuple

from braidlog.model.settings import TopicSettings
from braidlog.storage.files import Disk, join
from braidlog.storage.open_files import FilePool
from braidlog.storage.recovery.damage import Change, ChangeKind
from braidlog.storage.segment.segment import Segment
from braidlog.storage.segment.segment_files import (
    CLEANED,
    DAMAGED,
    DATA_START,
    INDEX,
    LOG,
    STATE,
    SWAP,
    Identity,
    Mark,
    SegmentHeader,
    bases_of,
    log_name,
)
from braidlog.storage.state.partition_state import Restart, StateImage

_DERIVED = (STATE, INDEX + CLEANED, INDEX, CLEANED)
_RECORDS = (SWAP, LOG)


class Place(NamedTuple):
    """A partition's folder with what is needed to open it."""

    disk: Disk
    folder: str
    identity: Identity
    pool: FilePool
    settings: TopicSettings


class LogReset(NamedTuple):
    segment: Segment
    """The only segment; it is empty."""
    image: StateImage
    """The leader has deleted only committed records, so the watermark is the base. Epochs, producers and
    transactions come with its batches.
    """
    changes: list[Change]


def reset_log(place: Place, restart: Restart, begun: int, *, read_only: bool) -> LogReset:
    """Remove or quarantine all segments and create an empty one; with `read_only`, only report it.

    `begun` is the last save of the leader epoch file that the log includes.
    """
    base = restart.offset
    why = f"the log was reset to {base}; {'set aside' if restart.sets_aside else 'removed'}"
    given_up = bases_of(place.disk.names(place.folder), LOG)
    changes = [Change(ChangeKind.REMOVE_BEHIND, log_name(each), why) for each in given_up]
    head, interval_bytes = (
        SegmentHeader(place.identity, base, restart.created_ms, 0),
        place.settings.index_interval_bytes,
    )
    if read_only:
        segment = Segment(place.disk, place.folder, head, Mark(DATA_START, base), DATA_START, place.pool)
        segment.use_index(interval_bytes, read_only=True)
        segment.load_index_below(None)  # none: an existing index file belongs to the discarded log
    else:
        _give_up(place, restart)
        segment = Segment.create(place.disk, place.folder, head, place.pool, interval_bytes)
        segment.use_index(interval_bytes, read_only=False)
    image = StateImage(start_offset=base, end_offset=base, cleaned_offset=base, watermark=base, begun=begun)
    return LogReset(segment, image, changes)


def _give_up(place: Place, restart: Restart) -> None:
    disk, names = place.disk, place.disk.names(place.folder)
    for suffix in _DERIVED + _RECORDS:
        for base in reversed(bases_of(names, suffix)):
            path = join(place.folder, f"{base:020d}{suffix}")
            kept = f"{path}.{restart.created_ms}{DAMAGED}"
            place.pool.drop(path)
            if restart.sets_aside and suffix in _RECORDS and not disk.exists(kept):
                disk.rename(path, kept)
            else:  # a segment quarantined before a crash has that name: this one was created in its place
                disk.remove(path)
    if restart.sets_aside:
        _keep_newest(place, restart.created_ms)


def _keep_newest(place: Place, created_ms: int) -> None:
    """Keep one damaged copy per partition, so that repeated damage does not fill the disk.

    The older copy is removed after the new one has its name: name changes in one folder become durable in order.
    """
    for name in place.disk.names(place.folder):
        if name.endswith(DAMAGED) and not name.endswith(f".{created_ms}{DAMAGED}"):
            place.disk.remove(join(place.folder, name))
