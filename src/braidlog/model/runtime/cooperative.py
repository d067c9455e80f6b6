"""Splits long work into slices that yield to the event loop.

Works with any event loop: yielding None asks the loop to resume the task later. Between two slices anything may have
changed, so the caller must check its data again.
"""

from collections.abc import AsyncIterator, Generator, Iterable
from types import coroutine
from typing import TypeVar

T = TypeVar("T")
SLICE = 200


@coroutine
def yield_to_loop() -> Generator[None, None, None]:
    """Yield to the event loop."""
    yield


class YieldCounter:
    """Progress of one request over many items, also in nested loops: it yields after every `size` items."""

    __slots__ = ("_left", "_size")

    def __init__(self, size: int = SLICE) -> None:
        self._left = self._size = size

    async def step(self, things: int = 1) -> None:
        """Count this many items, and yield to the event loop if due."""
        if self.is_due(things):
            await yield_to_loop()

    def is_due(self, things: int = 1) -> bool:
        """Count this many items; return whether to `yield_to_loop` now. For callers on a path where a coroutine costs too
        much.
        """
        self._left -= things
        if self._left > 0:
            return False
        self._left = self._size
        return True


async def in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[T]:
    """Yield the items of a copy, with a pause after every `size` items."""
    for number, item in enumerate(list(items), 1):
        yield item
        if number % size == 0:
            await yield_to_loop()
