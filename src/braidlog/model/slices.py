"""Work on many things that lets others have their turn.

Knows: how many at a time. Refuses to know: event loops: to yield nothing is to say "go on with me later" to each of them.
Whoever walks in slices looks again at what it was given: between two of them anything may have changed.
"""

from collections.abc import AsyncIterator, Generator, Iterable
from types import coroutine
from typing import TypeVar

T = TypeVar("T")
SLICE = 200


@coroutine
def breathe() -> Generator[None, None, None]:
    """Let others have a turn of the loop."""
    yield


class Pace:
    """How far one request has come that is about many things, whatever stands within what: after every so many others go on."""

    __slots__ = ("_left", "_size")

    def __init__(self, size: int = SLICE) -> None:
        self._left = self._size = size

    async def step(self, things: int = 1) -> None:
        """So many more are done."""
        if self.is_due(things):
            await breathe()

    def is_due(self, things: int = 1) -> bool:
        """So many more are done; whether to `breathe` now. For whoever is called so often that a coroutine is too much."""
        self._left -= things
        if self._left > 0:
            return False
        self._left = self._size
        return True


async def in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[T]:
    """The items as they are now, with a pause after every so many."""
    for number, item in enumerate(list(items), 1):
        yield item
        if number % size == 0:
            await breathe()
