"""Decides how far the next trigger of a stream reads.

Does not handle: Spark's classes, records. The end of a partition is never before its start, unless its log was
recreated. New partitions begin at their first offset. After `freeze`, later records are not read.
"""

from collections.abc import Mapping

from braidlog.model.clock import Clock, SystemClock
from braidlog.spark.source.bounds import find_places, places_of, starts, topics_of
from braidlog.spark.source.logs import Log
from braidlog.spark.source.losses import OTHER, Losses, gone
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import backlog_rows, capped
from braidlog.spark.source.positions import LATEST, Identities, Offsets, Place, same_topics

IDLE_WAIT_MS = 200
"""How long one call waits for records in an idle stream; Spark would call seventy times a second."""
_WEIGHED_SECONDS = 30.0


class Triggers:
    """The driver's side of one stream."""

    def __init__(self, log: Log, query: Query, losses: Losses, clock: Clock | None = None) -> None:
        self._log = log
        self._query = query
        self._losses = losses
        self._clock = clock or SystemClock()
        self._frozen: Offsets | None = None
        self._taken_at: float | None = None
        self._weights: dict[Place, tuple[float, float]] = {}
        self.seen: Offsets | None = None
        """The ends at the last look-up, shown as latest in the progress."""

    def initial(self) -> Offsets:
        places = find_places(self._log, self._query.selection)
        return starts(self._log, self._query.start, places, self._query.starting_offsets_by_timestamp_strategy)

    def freeze(self) -> None:
        """Limit this run to the records that exist now."""
        self._frozen = self._look()

    def latest(self, start: Offsets, *, unlimited: bool, identities: Identities | None = None) -> Offsets:
        """Return where the next trigger ends; `start` if it should not run yet. `identities`: of the topics in
        `start`."""
        ends = self._look()
        same = same_topics(start, identities or {}, self._log.identities)
        self._losses.handle(gone(start, set(start) - set(same), OTHER))
        start = same
        if self._frozen is None and not _is_beyond(start, ends):
            self._log.wait_beyond({place: ends[place] for place in ends if place in start}, IDLE_WAIT_MS)
            ends = self._look()
        if self._frozen is not None:
            ends = dict(self._frozen)
        kept = {place: at for place, at in start.items() if place not in ends and self._query.selection.has(place[0])}
        self._losses.handle(gone(start, kept))
        ends |= kept  # it may come back: until then it has no new records
        if unlimited:
            return ends
        return self._admitted(start, ends)

    def _look(self) -> Offsets:
        """Return the current ends. A new query requires its topics to exist; a resumed one reports losses instead."""
        selection = self._query.selection
        self.seen = self._log.look(topics_of(selection), lambda counts: places_of(selection, counts), LATEST)
        return dict(self.seen)

    def _admitted(self, start: Offsets, ends: Offsets) -> Offsets:
        limits, begun = self._query, self._begun(start, ends)
        if limits.min_offsets_per_trigger is not None and self._frozen is None and self._may_wait():
            rows = backlog_rows(begun, ends)
            if 0 < rows < limits.min_offsets_per_trigger:
                self._log.wait_beyond(ends, IDLE_WAIT_MS)
                return start
        if limits.max_offsets_per_trigger is not None:
            ends = capped(begun, ends, limits.max_offsets_per_trigger, lambda _: 1.0)
        if limits.max_bytes_per_trigger is not None:
            weights = {place: max(self.bytes_each(place, begun[place], at), 1.0) for place, at in ends.items()}
            ends = capped(begun, ends, limits.max_bytes_per_trigger, lambda place: weights[place])
        if ends != start:
            self._taken_at = self._clock.monotonic()
        return ends

    def _may_wait(self) -> bool:
        """Return whether to wait for more records: the first trigger of a run does not, as with Spark's Kafka
        connector."""
        return (
            self._taken_at is not None
            and (self._clock.monotonic() - self._taken_at) * 1000 < self._query.max_trigger_delay
        )

    def _begun(self, start: Offsets, ends: Offsets) -> Offsets:
        """Return the start of each place: new places, and recreated logs, start at their first offset."""
        new = [place for place, at in ends.items() if place not in start or start[place] > at]
        earliest = self._log.earliest(new)
        return {place: earliest[place] if place in earliest else start[place] for place in ends}

    def bytes_each(self, place: Place, start: int, end: int) -> float:
        """Return the log's estimate, cached for some time: a small trigger must not request it twice for every
        partition."""
        now = self._clock.monotonic()
        weight, at = self._weights.get(place, (0.0, 0.0))
        if end > start and (weight == 0.0 or now - at > _WEIGHED_SECONDS):
            weight = self._log.bytes_each(place, start, end)
            self._weights[place] = weight, now
        return weight


def _is_beyond(start: Mapping[Place, int], ends: Mapping[Place, int]) -> bool:
    return any(place not in start or at != start[place] for place, at in ends.items())
