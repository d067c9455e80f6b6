"""Whose turn it is: who wants more than its share of the loop waits in line, one piece of work of each connection after another.

Knows: connections that have work left, and for how long the loop was busy with them. Refuses to know: requests, sockets, what the
work is. Invariants: what one connection has to do is done in its order, save for its long polls, whose turns are their own;
between two pieces of work that took `SLICE_SECONDS` together the loop looks at its sockets, however many wait here: who asks
little is served from there, and never stands in line.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic
from typing import Final

SLICE_REQUESTS: Final = 64
SLICE_REQUESTS_MIN: Final = 8
SLICE_SECONDS: Final = 0.005
AT_ONCE: Final = 64
"""Requests that go on in one turn of the loop without standing in line, half as many long polls: the usual number is one."""

Work = Callable[[], None]


class FairTurns:
    """One for all listeners of a node."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._lines: OrderedDict[object, deque[Work]] = OrderedDict()
        self._polls: OrderedDict[object, deque[Work]] = OrderedDict()
        """Long polls that were woken: an append wakes all of its partition, and its own answer does not wait behind them."""
        self._is_due = False
        self._at_once = AT_ONCE
        self.waits = 0
        """How often someone had to stand in line."""

    @property
    def crowd(self) -> int:
        """How many connections have work left."""
        return len(self._lines) + len(self._polls)

    @property
    def slice_requests(self) -> int:
        """How many requests of one connection are served before others: the fewer, the more wait."""
        crowd = self.crowd
        return max(SLICE_REQUESTS // (1 + crowd), SLICE_REQUESTS_MIN) if crowd else SLICE_REQUESTS

    def wait(self, who: object, work: Work, *, is_poll: bool = False) -> None:
        """Do this when it is `who`'s turn, after what else it has in line; also if it is gone by then: a change goes on."""
        self.waits += 1
        lines = self._polls if is_poll else self._lines
        line = lines.get(who)
        if line is None:
            line = lines[who] = deque()
        line.append(work)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._take_turns)

    def go_on(self, who: object, work: Work, *, is_poll: bool = False) -> None:
        """A request has what it waited for. One sync may end a thousand waits: then the others go on in their turns."""
        if self._at_once == AT_ONCE:
            self._loop.call_soon(self._begin_anew)
        if self._at_once > (AT_ONCE // 2 if is_poll else 0) and not (self.crowd if is_poll else self._lines):
            self._at_once -= 1
            work()
        else:
            self.wait(who, work, is_poll=is_poll)

    def _begin_anew(self) -> None:
        self._at_once = AT_ONCE

    def _take_turns(self) -> None:
        until = self.clock() + SLICE_SECONDS
        self._is_due = False
        while self.crowd:
            for lines in filter(None, (self._lines, self._polls)):
                who, line = lines.popitem(last=False)
                work = line.popleft()
                if line:
                    lines[who] = line  # behind the others
                work()
            if self.clock() >= until:
                break
        if self.crowd and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._take_turns)
