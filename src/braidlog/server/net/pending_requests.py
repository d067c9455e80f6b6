"""The requests of one connection that are under way, and those whose answers wait for their turn.

Knows: which of them may be ended, which only wait. Refuses to know: how requests are read and answered, any dialect, any service.
Invariant: of an ordered dialect every request without an answer has a place in line; none waits there for what has left it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from braidlog.server.net.memory_budget import SMALL_BYTES
from braidlog.server.net.scheduler import Running

PENDING: Final = object()
"""The answer of a request that has none yet."""
WAITING_BYTES = 5632
"""What a request takes while it waits, whatever it is: measured with long polls."""
FEW_WAITING = SMALL_BYTES // WAITING_BYTES
"""Nobody counts these; and while memory is short, a connection has no more."""


class Turn:
    """A request and, once it is there, its answer."""

    __slots__ = ("answer", "began", "is_held_back", "request", "running")

    def __init__(self, request: Any = None, began: float = 0.0) -> None:  # noqa: ANN401
        self.request = request
        self.answer: Any = PENDING
        self.is_held_back = False
        self.running: Running | None = None
        self.began = began
        """When, if its time is taken."""

    @property
    def only_waits(self) -> bool:
        """It has begun, and its client is owed no answer: a long poll, a place in line."""
        return self.running is not None and self.running.may_end and not self.running.must_finish


class PendingRequests:
    __slots__ = ("_alone", "beside", "has_held_back", "is_ordered", "line", "under_way")

    def __init__(self, *, is_ordered: bool) -> None:
        self.is_ordered = is_ordered
        """Whether answers leave in the order of their requests."""
        self.line: deque[Turn] = deque()
        """In order, those that have no answer yet, or whose answers wait for another's."""
        self.under_way: set[Turn] = set()
        self.beside: set[Turn] = set()
        """Streams, which give answers beside those of other requests."""
        self.has_held_back = False
        """Whether any that could go on has no room for its answer."""
        self._alone: asyncio.Future[None] | None = None

    def add(self, turn: Turn) -> None:
        """It has to wait."""
        self.under_way.add(turn)
        self.queue(turn)

    def queue(self, turn: Turn) -> None:
        if self.is_ordered:
            self.line.append(turn)

    def ended(self, turn: Turn) -> None:
        turn.running = None
        self.under_way.discard(turn)
        if self._alone is not None and len(self.under_way) == 1 and not self._alone.done():
            self._alone.set_result(None)

    async def others_ended(self) -> None:
        """Wait until the one that asks is the last. It is not under way yet: it is when it has to wait."""
        if self.under_way:
            self._alone = asyncio.get_running_loop().create_future()
            await self._alone

    def __len__(self) -> int:
        return len(self.line if self.is_ordered else self.under_way) + len(self.beside)

    @property
    def are_any(self) -> bool:
        return bool(self.line or self.under_way or self.beside)

    @property
    def running(self) -> list[Running]:
        """What runs for this client."""
        turns = (*self.line, *self.under_way, *self.beside)
        return [turn.running for turn in turns if turn.running is not None]

    def is_first(self, turn: Turn) -> bool:
        return self.is_ordered and bool(self.line) and self.line[0] is turn

    def resume_held_back(self, has_room: Callable[[Turn], bool]) -> None:
        """Resume those that were held back, in order, as long as there is room."""
        for turn in (*(self.line if self.is_ordered else self.under_way), *self.beside):
            if turn.is_held_back and turn.running is not None:
                if not has_room(turn):
                    return
                turn.is_held_back = False
                turn.running.resume()
        self.has_held_back = False

    def run_out(self, is_wanted: Callable[[Any], bool]) -> None:
        """Answer the long polls of these requests with what there is."""
        for turn in list(self.under_way):
            if turn.running is not None and is_wanted(turn.request):
                turn.running.run_out()

    def run_out_all(self) -> None:
        """The same of all. If all of them wait for other clients, as members of a group do, they end."""
        running = self.running
        for each in running:
            each.run_out()
        if running and all(each.is_parked for each in running):
            self.forget()

    def forget_waits(self) -> None:
        """End what only waits, with all that was asked after it. A long poll that others are behind is answered with what there
        is."""
        kept: list[Turn] = []
        for turn in self.line:
            is_last = turn is self.line[-1]
            if turn.only_waits and (is_last or turn.running is None or not turn.running.run_out()):
                break
            kept.append(turn)
        self.line = deque(kept)
        for turn in list(self.under_way):
            if turn.running is not None and turn.only_waits and turn not in kept:
                turn.running.cancel()
                self.under_way.discard(turn)

    def forget(self) -> None:
        """The client is gone: what may be ended is ended, and nothing is answered any more."""
        for turn in (*self.under_way, *self.line, *self.beside):
            if turn.running is not None:
                turn.running.cancel()
                turn.running = None  # each knows the other: together they would keep this connection's buffers alive
        self.line.clear()
        self.under_way.clear()
        self.beside.clear()
