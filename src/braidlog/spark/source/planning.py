"""Plans how much a trigger reads, and splits it into tasks. Numbers only: no clock, no server, no Spark.

A limit of at least one always allows some progress, so that no query stalls. The pieces of a range are contiguous and
not empty, and together cover the range.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec

from braidlog.spark.source.positions import Offsets, Place


class Range(msgspec.Struct, frozen=True):
    """Offsets [start, end) of one partition, and the approximate bytes of each."""

    topic: str
    partition: int
    start: int
    end: int
    bytes_each: float = 0.0

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def rows(self) -> int:
        return self.end - self.start

    @property
    def size(self) -> float:
        return self.rows * self.bytes_each


class Cuts(msgspec.Struct, frozen=True):
    """The targets for splitting into tasks."""

    target_bytes: int
    partitions_min: int | None = None
    rows_max: int | None = None
    at_a_time: int | None = None
    """Number of tasks that run concurrently, if known: one task for each suffices, if none exceeds `bytes_max`."""
    bytes_max: int = 0


# -- limits ----------------------------------------------------------------------------------------------------------


def capped(
    start: Mapping[Place, int], end: Mapping[Place, int], limit: int, weigh: Callable[[Place], float]
) -> Offsets:
    """Return ends that cover about `limit` in all, each partition in proportion to its backlog; `weigh` returns an
    offset's weight.

    Shares are rounded down; the remainder goes, one offset each, to the partitions that were cut most.
    """
    backlog = {place: max(upto - start[place], 0) for place, upto in end.items()}
    whole = sum(rows * weigh(place) for place, rows in backlog.items())
    if whole <= limit:
        return dict(end)
    shares = {place: limit * rows / whole for place, rows in backlog.items()}
    taken = {place: int(share) for place, share in shares.items()}
    left = limit - sum(rows * weigh(place) for place, rows in taken.items())
    for place in sorted(shares, key=lambda place: (taken[place] - shares[place], place)):
        if taken[place] < backlog[place] and weigh(place) <= left:
            taken[place] += 1
            left -= weigh(place)
    if not any(taken.values()):
        # One offset that exceeds the limit is read anyway: a large record must not stop the query.
        taken[max(backlog, key=lambda place: (backlog[place], place))] = 1
    return {place: upto if not backlog[place] else start[place] + taken[place] for place, upto in end.items()}


def backlog_rows(start: Mapping[Place, int], end: Mapping[Place, int]) -> int:
    return sum(max(upto - start[place], 0) for place, upto in end.items())


# -- splitting -------------------------------------------------------------------------------------------------------


def split(ranges: Sequence[Range], cuts: Cuts) -> list[Range]:
    """Split ranges: no piece far over the target in bytes or rows, and about `partitions_min` pieces if there are
    rows."""
    full = [each for each in ranges if each.rows > 0]
    target = _target(cuts, sum(each.size for each in full))
    counts = [max(_over(each.size, target), _over(each.rows, cuts.rows_max)) for each in full]
    if cuts.partitions_min is not None and sum(counts) < cuts.partitions_min:
        whole = sum(each.rows for each in full)
        counts = [
            max(count, round(cuts.partitions_min * each.rows / whole)) for count, each in zip(counts, full, strict=True)
        ]
    return [piece for each, count in zip(full, counts, strict=True) for piece in _pieces(each, count)]


def _target(cuts: Cuts, whole: float) -> int:
    """Return the target size. More tasks than can run concurrently only queue, and each has a start-up cost. A tenth
    of slack, because partitions are never equal."""
    if cuts.at_a_time is None:
        return cuts.target_bytes
    return max(cuts.target_bytes, min(cuts.bytes_max, math.ceil(1.1 * whole / cuts.at_a_time)))


def _over(amount: float, each_max: int | None) -> int:
    return 1 if each_max is None else max(math.ceil(amount / each_max), 1)


def _pieces(whole: Range, count: int) -> list[Range]:
    count = max(min(count, whole.rows), 1)
    edges = [whole.start + whole.rows * number // count for number in range(count + 1)]
    return [msgspec.structs.replace(whole, start=start, end=end) for start, end in pairwise(edges)]
