"""The requests of one connection that are in progress, and answers that wait for earlier ones.

Invariant: in an ordered dialect, every unanswered request has a place in line, and no answer waits for a request that
has left the line.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from braidlog.server.net.memory_budget import SMALL_BYTES
from braidlog.server.net.scheduler import Running

PENDING: Final = object()
"""Placeholder of an answer that does not exist yet."""
WAITING_BYTES = 5632
"""Memory of a waiting request, measured with long polls."""
FEW_WAITING = SMALL_BYTES // WAITING_BYTES
"""Waiting requests that are not counted in the budget; while memory is short, they are a connection's maximum."""


class Turn:
    """A request, and its answer once it exists."""

    __slots__ = ("answer", "began", "is_held_back", "request", "running")

    def __init__(self, request: Any = None, began: float = 0.0) -> None:  # noqa: ANN401
        self.request = request
        self.answer: Any = PENDING
        self.is_held_back = False
        self.running: Running | None = None
        self.began = began
        """When the request began, if its duration is sampled, else 0."""

    @property
    def only_waits(self) -> bool:
        """Whether the request has begun and may be dropped without an answer: a long poll, a wait for its turn."""
        return self.running is not None and self.running.may_end and not self.running.must_finish


class PendingRequests:
    __slots__ = ("_alone", "beside", "has_held_back", "is_ordered", "line", "under_way")

    def __init__(self, *, is_ordered: bool) -> None:
        self.is_ordered = is_ordered
        """Whether answers leave in the order of their requests."""
        self.line: deque[Turn] = deque()
        """Requests in order that have no answer yet, or whose answers wait for earlier ones."""
        self.under_way: set[Turn] = set()
        self.beside: set[Turn] = set()
        """Streams, whose frames are sent between the answers of other requests."""
        self.has_held_back = False
        """Whether a request that could resume has no room for its answer."""
        self._alone: asyncio.Future[None] | None = None

    def add(self, turn: Turn) -> None:
        """Add a request that has to wait."""
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
        """Wait until the calling request is the only one in progress; it counts only once it has to wait."""
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
        """Coroutines that run for this connection."""
        turns = (*self.line, *self.under_way, *self.beside)
        return [turn.running for turn in turns if turn.running is not None]

    def is_first(self, turn: Turn) -> bool:
        return self.is_ordered and bool(self.line) and self.line[0] is turn

    def resume_held_back(self, has_room: Callable[[Turn], bool]) -> None:
        """Resume held-back requests in order, while there is room."""
        for turn in (*(self.line if self.is_ordered else self.under_way), *self.beside):
            if turn.is_held_back and turn.running is not None:
                if not has_room(turn):
                    return
                turn.is_held_back = False
                turn.running.resume()
        self.has_held_back = False

    def run_out(self, is_wanted: Callable[[Any], bool]) -> None:
        """Answer matching long polls early, with the data that exists."""
        for turn in list(self.under_way):
            if turn.running is not None and is_wanted(turn.request):
                turn.running.run_out()

    def run_out_all(self) -> None:
        """Answer all long polls early. If all requests wait for other clients, as group members do, cancel them."""
        running = self.running
        for each in running:
            each.run_out()
        if running and all(each.is_parked for each in running):
            self.forget()

    def forget_waits(self) -> None:
        """Drop the first request that only waits, and all later ones; a long poll with later requests is answered early
        instead."""
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
        """The client has disconnected: cancel requests that may be cancelled, and drop all answers."""
        for turn in (*self.under_way, *self.line, *self.beside):
            if turn.running is not None:
                turn.running.cancel()
                turn.running = None  # break the cycle, which would keep this connection's buffers alive
        self.line.clear()
        self.under_way.clear()
        self.beside.clear()
