"""How many records of a range a reader sees, from the headers of its batches: nothing is decoded, and nothing checked.

Knows: which batches hold records, and which of those are hidden. Refuses to know: segments, how far a reader may go.
Invariant: what is told is what a reader of the range would be given. Of a batch with holes (compaction makes them) the header
says how many records are left and not which: a range that cuts one in two is not counted beyond its edge.
"""

from collections.abc import Iterable
from typing import NamedTuple

from braidlog.codec.batch import CONTROL, TRANSACTIONAL
from braidlog.storage.transactions import Aborted
from braidlog.storage.walk import Place


class Counted(NamedTuple):
    """So many records are seen in the range up to `next_offset`; what is behind it is not known yet."""

    records: int
    next_offset: int


def count_seen(places: Iterable[Place], start: int, end: int, aborted: Iterable[Aborted]) -> Counted:
    """Of batches that follow each other, the first of which holds `start`, below `end`."""
    ahead = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
    hidden_upto: dict[int, int] = {}
    records, at = 0, start
    for place in places:
        if place.offset >= end:
            break
        while ahead and ahead[-1].first_offset < place.next_offset:
            txn = ahead.pop()
            hidden_upto[txn.producer_id] = txn.last_offset
        following = min(place.next_offset, end)
        is_hidden = place.attributes & TRANSACTIONAL and place.offset <= hidden_upto.get(place.producer_id, -1)
        if is_hidden or place.attributes & CONTROL:
            pass
        elif at == place.offset and following == place.next_offset:
            records += place.records
        elif place.records == place.next_offset - place.offset:
            records += following - at
        elif place.records:
            break  # some of its records are within the range: which, only the batch itself knows
        at = following
    return Counted(records, at)
