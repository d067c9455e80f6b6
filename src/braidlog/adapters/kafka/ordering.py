"""Runs the requests of one connection in the order of their arrival, as Kafka's clients rely on.

Invariants: a request starts when every earlier one of its connection has ended, or has an effect that it cannot
observe. Waiting requests start in order. So consecutive produces share a sync, reads wait beside reads and members
beside members, and any other request sees the effects of all before it.
"""

from collections import deque
from collections.abc import Mapping
from enum import Enum, auto

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.world import Wakeup, World
from braidlog.wire.kafka.apis import Key

TURN_SECONDS_MAX = 3600.0


class Effect(Enum):
    CHANGES = auto()
    """A change that any other request may observe: it runs alone."""
    APPENDS = auto()
    """Appends records. They are written on start, so that others of this kind may follow before it is acknowledged."""
    READS = auto()
    """No effect."""
    JOINS = auto()
    """Group membership. It changes on start; the wait is for other members. A client that abandons its join sends
    another one, which replaces it.
    """


EFFECTS: Mapping[Key, Effect] = {
    Key.PRODUCE: Effect.APPENDS,
    Key.FETCH: Effect.READS,
    Key.LIST_OFFSETS: Effect.READS,
    Key.COUNT_RECORDS: Effect.READS,
    Key.OFFSET_FOR_LEADER_EPOCH: Effect.READS,
    Key.JOIN_GROUP: Effect.JOINS,
    Key.SYNC_GROUP: Effect.JOINS,
    Key.HEARTBEAT: Effect.JOINS,
    Key.LEAVE_GROUP: Effect.JOINS,
    Key.CONSUMER_GROUP_HEARTBEAT: Effect.JOINS,
}
"""Effects of requests that may take long and are often sent in parallel; all others are `CHANGES`, and most end
immediately.
"""


class Order:
    """The running and the waiting requests of one connection."""

    __slots__ = ("_effect", "_is_one_woken", "_line", "_under_way")

    def __init__(self) -> None:
        self._effect = Effect.CHANGES
        self._under_way = 0
        self._is_one_woken = False
        """A woken request has not run yet: none may overtake it, and it wakes the next."""
        self._line: deque[tuple[Effect, Wakeup]] = deque()

    def begin(self, effect: Effect) -> bool:
        """Return whether a request with this effect may start now; then call `end` after it. Otherwise call `wait`."""
        if self._under_way and (self._line or self._is_one_woken or not self._fits(effect)):
            return False  # while a request waits, another one is running
        self._effect = effect
        self._under_way += 1
        return True

    async def wait(self, effect: Effect, world: World) -> None:
        """Wait until all earlier requests allow this one to start; then call `end` after it."""
        place = (effect, world.wakeup())
        self._line.append(place)
        woken = False
        try:
            woken = await place[1].wait(TURN_SECONDS_MAX)
        finally:
            if place in self._line:  # its client has disconnected, or it timed out
                self._line.remove(place)
            else:
                self._is_one_woken = False
                self._under_way -= 0 if woken else 1
            self._wake()
        if not woken:
            raise BrokerError(Reason.TIMED_OUT, f"requests before this one took {TURN_SECONDS_MAX:g} s; retry")

    def end(self) -> None:
        self._under_way -= 1
        if self._line:
            self._wake()

    def _fits(self, effect: Effect) -> bool:
        return not self._under_way or (effect is self._effect and effect is not Effect.CHANGES)

    def _wake(self) -> None:
        """Wake only the first in line: two woken requests might run in another order."""
        if self._line and not self._is_one_woken and self._fits(self._line[0][0]):
            self._effect, wakeup = self._line.popleft()
            self._under_way += 1
            self._is_one_woken = True
            wakeup.wake()
