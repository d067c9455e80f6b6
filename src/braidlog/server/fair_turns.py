"""Fair scheduling: a connection that wants more than its share of the loop waits in line, one piece of work of each in turn.

Knows: connections that have work left, and for how long the loop was busy with them. Refuses to know: requests, sockets, what the
work is. Invariants: answers, woken long polls and requests to read have a line each, none waits behind another's, and within a
line the work of one connection is done in its order; between two pieces of work that took `SLICE_SECONDS` together the loop looks
at its sockets, however many wait here: a client that asks little is served from there, and never stands in line.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic, thread_time
from typing import Final

SLICE_REQUESTS: Final = 64
SLICE_REQUESTS_MIN: Final = 8
SLICE_SECONDS: Final = 0.005
QUICK, UNKNOWN, SLOW = range(3)
"""How long the last reads of a connection took, which chooses the line of its next one."""
SLOW_SECONDS: Final = 0.001
COUNTED_SECONDS_MIN: Final = 0.0002
"""Sockets that take less are not counted: to count one takes another look at the sockets."""
AT_ONCE: Final = 64
"""Requests that resume in one turn of the loop without waiting in line, half as many long polls: the usual number is one."""

Work = Callable[[], None]
Line = OrderedDict[object, deque[Work]]


class FairTurns:
    """One for all listeners of a node."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._answers: Line = OrderedDict()
        """Requests that have what they waited for, an append's sync for example."""
        self._polls: Line = OrderedDict()
        """Woken long polls: an append wakes all of its partition, and its own answer does not wait behind them."""
        self._reads: tuple[Line, ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        """Received bytes, by the speed of their connection: to read a compressed body takes milliseconds."""
        self._lines = (self._answers, self._polls, *self._reads)
        self._is_due = False
        self._at_once = AT_ONCE
        self._served_seconds = 0.0
        self._processor_seconds = thread_time()
        self.waits = 0
        """How often someone had to stand in line."""

    @property
    def crowd(self) -> int:
        """How many connections have work left."""
        return sum(map(len, self._lines))

    @property
    def slice_requests(self) -> int:
        """How many requests of one connection are served before others: the fewer, the more wait."""
        crowd = self.crowd
        return max(SLICE_REQUESTS // (1 + crowd), SLICE_REQUESTS_MIN) if crowd else SLICE_REQUESTS

    @property
    def is_used_up(self) -> bool:
        """Whether sockets were served for a whole slice in this turn of the loop: what they bring now waits for its turn."""
        return self._served_seconds >= SLICE_SECONDS

    def served(self, seconds: float, speed: int) -> int:
        """Count what it took to serve the socket of a connection that had this speed; return the speed that it has now."""
        if seconds >= SLOW_SECONDS:
            # On a busy machine the loop may have been kept from its processor meanwhile.
            before, self._processor_seconds = self._processor_seconds, thread_time()
            seconds = min(seconds, self._processor_seconds - before)
        if seconds >= COUNTED_SECONDS_MIN:
            if not self._served_seconds:
                self._loop.call_soon(self._begin_anew)
            self._served_seconds += seconds
        return min(speed + 1, SLOW) if seconds >= SLOW_SECONDS else QUICK

    def wait(self, who: object, work: Work, speed: int = QUICK) -> None:
        """Read more when it is `who`'s turn; also if it is gone by then."""
        self._stand(self._reads[speed], who, work)

    def _stand(self, line: Line, who: object, work: Work) -> None:
        self.waits += 1
        works = line.get(who)
        if works is None:
            works = line[who] = deque()
        works.append(work)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._take_turns)

    def go_on(self, who: object, work: Work, *, is_poll: bool = False) -> None:
        """Resume a request that has what it waited for. One sync may end a thousand waits: then the others resume in their
        turns, also if their clients are gone by then: a change is finished."""
        if self._at_once == AT_ONCE:
            self._loop.call_soon(self._begin_anew)
        line, kept = (self._polls, AT_ONCE // 2) if is_poll else (self._answers, 0)
        if self._at_once > kept and not self._answers and not line:
            self._at_once -= 1
            work()
        else:
            self._stand(line, who, work)

    def _begin_anew(self) -> None:
        self._at_once = AT_ONCE
        self._served_seconds = 0.0

    def _take_turns(self) -> None:
        self._is_due = False
        lines = [line for line in self._lines if line]
        for line in lines:
            until = self.clock() + SLICE_SECONDS / len(lines)
            while line:
                who, works = line.popitem(last=False)
                work = works.popleft()
                if works:
                    line[who] = works  # behind the others
                self._processor_seconds = thread_time()
                work()
                if self.clock() >= until:
                    break
        if self.crowd and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._take_turns)
