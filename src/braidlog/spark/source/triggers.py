"""A stream, trigger by trigger: how far the next one goes.

Knows: what was taken, what is there, the caps, the patience for more. Refuses to know: Spark's classes, records.
Invariants: a place's end never lies before its start unless its log was made anew; places that appear begin at their first
offset; after `freeze` nothing that came later is taken.
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
"""How long an idle stream waits for news in one call; Spark would ask seventy times a second."""
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
        """The ends at the last look: what progress shows as latest."""

    def initial(self) -> Offsets:
        places = find_places(self._log, self._query.selection)
        return starts(self._log, self._query.start, places, self._query.starting_offsets_by_timestamp_strategy)

    def freeze(self) -> None:
        """What is there now is all that this run will take."""
        self._frozen = self._look()

    def latest(self, start: Offsets, *, unlimited: bool, identities: Identities | None = None) -> Offsets:
        """Where the next trigger ends; `start` if there is nothing for it yet. `identities`: of the topics of `start`."""
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
        ends |= kept  # it may come back: until then there is nothing new in it
        if unlimited:
            return ends
        return self._admitted(start, ends)

    def _look(self) -> Offsets:
        """What is there. A query that begins has said what must be; one that goes on is told of losses instead."""
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
        """The first trigger of a run does not wait, as with Spark's Kafka connector."""
        return (
            self._taken_at is not None
            and (self._clock.monotonic() - self._taken_at) * 1000 < self._query.max_trigger_delay
        )

    def _begun(self, start: Offsets, ends: Offsets) -> Offsets:
        """Where each place begins: those that are new, and logs that were made anew, with their first offset."""
        new = [place for place, at in ends.items() if place not in start or start[place] > at]
        earliest = self._log.earliest(new)
        return {place: earliest[place] if place in earliest else start[place] for place in ends}

    def bytes_each(self, place: Place, start: int, end: int) -> float:
        """As the log says, asked now and then: a trigger of a few records should not cost two looks at every partition."""
        now = self._clock.monotonic()
        weight, at = self._weights.get(place, (0.0, 0.0))
        if end > start and (weight == 0.0 or now - at > _WEIGHED_SECONDS):
            weight = self._log.bytes_each(place, start, end)
            self._weights[place] = weight, now
        return weight


def _is_beyond(start: Mapping[Place, int], ends: Mapping[Place, int]) -> bool:
    return any(place not in start or at != start[place] for place, at in ends.items())
