"""A stream's progress, committed to a group for people to see.

Knows: what this query has committed, and that nobody else should. Refuses to know: how far a stream may go: its checkpoint says.
Invariant: a group that cannot be reached, or that another writes to, stops no query: it is said.
"""

from braidlog.client.errors import ClientError
from braidlog.model.clock import Clock, SystemClock
from braidlog.spark.options import warn_once
from braidlog.spark.source.logs import Log
from braidlog.spark.source.positions import Offsets, shown

LOOK_SECONDS = 30.0
"""How often the group is looked at: a question for each trigger would cost more than the answer is worth."""


class Group:
    """The group of one query."""

    def __init__(self, log: Log, name: str, clock: Clock | None = None) -> None:
        self._log = log
        self._name = name
        self._clock = clock or SystemClock()
        self._committed: Offsets = {}
        self._looked_at: float | None = None

    def commit(self, done: Offsets) -> None:
        """What was processed, as far as it was not committed before."""
        new = {place: at for place, at in done.items() if self._committed.get(place) != at}
        if not new:
            return
        try:
            self._look()
            self._log.commit(self._name, new)
        except ClientError as error:
            warn_once(f"progress cannot be committed to group {self._name}: {error}")
            return
        self._committed |= new

    def _look(self) -> None:
        """Say it if the group does not hold what this query has put there: two queries make each other's lag meaningless."""
        now = self._clock.monotonic()
        if not self._committed or (self._looked_at is not None and now - self._looked_at < LOOK_SECONDS):
            return
        self._looked_at = now
        found = self._log.committed(self._name)
        if strange := [place for place, at in self._committed.items() if found.get(place, at) != at]:
            warn_once(
                f"group {self._name}: somebody else commits to {shown(strange)} too, and its lag says nothing; "
                "give each query a groupId of its own"
            )
