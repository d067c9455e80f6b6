"""Requests of one connection take effect in the order in which they came, as Kafka's clients rely on.

Knows: which requests may be under way together. Refuses to know: what any of them does.
Invariants: a request begins when every earlier one of its connection has ended, or is of a kind whose effects it cannot see;
those that wait begin in the order in which they came. So produces behind produces share a sync, reads wait beside reads and
members beside members, and whatever else is asked behind any of them sees what they did.
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
    """Something that any other request may see: nothing is under way beside it."""
    APPENDS = auto()
    """Records. Appended as soon as it begins, so that others of this kind may follow before it is acknowledged."""
    READS = auto()
    """Nothing."""
    JOINS = auto()
    """Who is in a group. Known as soon as it begins; what is waited for is the others. A client that gives up its join sends
    another behind it, which takes its place."""


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
"""Of those that may take long and are often sent several at a time; all others are `CHANGES`, and most of them end at once."""


class Order:
    """The requests of one connection that are under way, and those that wait to begin."""

    __slots__ = ("_effect", "_is_one_woken", "_line", "_under_way")

    def __init__(self) -> None:
        self._effect = Effect.CHANGES
        self._under_way = 0
        self._is_one_woken = False
        """One of those under way was woken and has not run yet: nobody may pass it, and it wakes the next."""
        self._line: deque[tuple[Effect, Wakeup]] = deque()

    def begin(self, effect: Effect) -> bool:
        """Whether a request with this effect may begin at once; then `end` must follow. Else it has to `wait`."""
        if self._under_way and (self._line or self._is_one_woken or not self._fits(effect)):
            return False  # while somebody waits, somebody is under way
        self._effect = effect
        self._under_way += 1
        return True

    async def wait(self, effect: Effect, world: World) -> None:
        """Until everything before it allows it to begin; then `end` must follow."""
        place = (effect, world.wakeup())
        self._line.append(place)
        woken = False
        try:
            woken = await place[1].wait(TURN_SECONDS_MAX)
        finally:
            if place in self._line:  # its client is gone, or its time is up
                self._line.remove(place)
            else:
                self._is_one_woken = False
                self._under_way -= 0 if woken else 1
            self._wake()
        if not woken:
            raise BrokerError(Reason.TIMED_OUT, f"requests before this one took {TURN_SECONDS_MAX:g} s; try again")

    def end(self) -> None:
        self._under_way -= 1
        if self._line:
            self._wake()

    def _fits(self, effect: Effect) -> bool:
        return not self._under_way or (effect is self._effect and effect is not Effect.CHANGES)

    def _wake(self) -> None:
        """The first in line, alone: two that were woken together might run in another order."""
        if self._line and not self._is_one_woken and self._fits(self._line[0][0]):
            self._effect, wakeup = self._line.popleft()
            self._under_way += 1
            self._is_one_woken = True
            wakeup.wake()
