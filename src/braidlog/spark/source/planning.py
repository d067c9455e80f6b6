"""How much a trigger takes, and into how many tasks it is cut. Numbers only: no clock, no server, no Spark.

Knows: backlogs, caps, sizes. Refuses to know: where any of them come from.
Invariants: a cap of one or more always takes something where there is something, so that no query stands still; the pieces of a
range follow each other without a gap, none is empty, and together they are the range.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec

from braidlog.spark.source.positions import Offsets, Place


class Range(msgspec.Struct, frozen=True):
    """Offsets [start, end) of one partition, and about how many bytes each of them takes."""

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
    """Into how many tasks."""

    target_bytes: int
    partitions_min: int | None = None
    rows_max: int | None = None
    at_a_time: int | None = None
    """How many tasks run at once, where that is known: one for each is enough, as long as none has `bytes_max`."""
    bytes_max: int = 0


# -- how much --------------------------------------------------------------------------------------------------------


def capped(
    start: Mapping[Place, int], end: Mapping[Place, int], limit: int, weigh: Callable[[Place], float]
) -> Offsets:
    """Ends that take about `limit` in all, each partition in proportion to its backlog; `weigh` is of one of its offsets.

    Shares are rounded down; what that leaves goes, an offset each, to those that were cut off most.
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
        # One offset that weighs more than the cap is taken all the same: a large record must not stop the query.
        taken[max(backlog, key=lambda place: (backlog[place], place))] = 1
    return {place: upto if not backlog[place] else start[place] + taken[place] for place, upto in end.items()}


def backlog_rows(start: Mapping[Place, int], end: Mapping[Place, int]) -> int:
    return sum(max(upto - start[place], 0) for place, upto in end.items())


# -- how many tasks --------------------------------------------------------------------------------------------------


def split(ranges: Sequence[Range], cuts: Cuts) -> list[Range]:
    """The ranges in pieces: none much over the target in bytes or rows, and about `partitions_min` of them if there are rows."""
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
    """More than these tasks would only wait for each other, and each costs Spark the same to start. A tenth of room: partitions
    are never equal."""
    if cuts.at_a_time is None:
        return cuts.target_bytes
    return max(cuts.target_bytes, min(cuts.bytes_max, math.ceil(1.1 * whole / cuts.at_a_time)))


def _over(amount: float, each_max: int | None) -> int:
    return 1 if each_max is None else max(math.ceil(amount / each_max), 1)


def _pieces(whole: Range, count: int) -> list[Range]:
    count = max(min(count, whole.rows), 1)
    edges = [whole.start + whole.rows * number // count for number in range(count + 1)]
    return [msgspec.structs.replace(whole, start=start, end=end) for start, end in pairwise(edges)]
