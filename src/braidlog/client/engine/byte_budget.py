"""A limit on the bytes held, with a first-come-first-served queue of callers that wait for room.

At most `bytes_max` bytes are taken, except by a single larger request when nothing else is taken.
"""

import asyncio
from collections import deque


class ByteBudget:
    """Take bytes before holding them, give them back after."""

    def __init__(self, bytes_max: int) -> None:
        if bytes_max < 1:
            raise ValueError(f"a byte budget must be at least 1, not {bytes_max}")
        self.bytes_max = bytes_max
        self.taken = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def take_now(self, size: int) -> bool:
        """Take bytes if there is room and no caller waits."""
        if self._queue or not self._fits(size):
            return False
        self.taken += size
        return True

    async def take(self, size: int, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the queue is left in time
        """Wait for room; TimeoutError if there is none in time."""
        if self.take_now(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = size, turn
        self._queue.append(entry)
        try:
            async with asyncio.timeout(timeout):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give(size)  # the request was granted and cancelled in the same step
            else:
                self._queue.remove(entry)
                self._serve()
            raise

    def give(self, size: int) -> None:
        self.taken -= size
        self._serve()

    def _fits(self, size: int) -> bool:
        return self.taken + size <= self.bytes_max or not self.taken

    def _serve(self) -> None:
        while self._queue and (self._queue[0][1].done() or self._fits(self._queue[0][0])):
            size, turn = self._queue[0]
            if turn.done():
                return  # cancelled: its owner removes it from the queue, and serves the next callers
            self._queue.popleft()
            self.taken += size
            turn.set_result(None)
