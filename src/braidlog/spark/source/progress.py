"""Commits a stream's progress to a group, for monitoring.

A group that cannot be reached, or that another client commits to, never stops a query; it is logged. Does not handle:
the stream's own progress, which its checkpoint stores.
"""

from braidlog.client.errors import ClientError
from braidlog.model.clock import Clock, SystemClock
from braidlog.spark.options import warn_once
from braidlog.spark.source.logs import Log
from braidlog.spark.source.positions import Offsets, shown

LOOK_SECONDS = 30.0
"""How often the group is checked: a request in each trigger would cost too much."""


class Group:
    """The group of one query."""

    def __init__(self, log: Log, name: str, clock: Clock | None = None) -> None:
        self._log = log
        self._name = name
        self._clock = clock or SystemClock()
        self._committed: Offsets = {}
        self._looked_at: float | None = None

    def commit(self, done: Offsets) -> None:
        """Commit progress, as far as it was not committed before."""
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
        """Warn if the group has other offsets than this query committed: two queries in one group make its lag
        meaningless."""
        now = self._clock.monotonic()
        if not self._committed or (self._looked_at is not None and now - self._looked_at < LOOK_SECONDS):
            return
        self._looked_at = now
        committed = self._log.committed(self._name)
        if strange := [place for place, at in self._committed.items() if committed.get(place, at) != at]:
            warn_once(
                f"group {self._name}: another client also commits to {shown(strange)}, and its lag is meaningless; "
                "give each query its own groupId"
            )
