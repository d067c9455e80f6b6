"""How long an administrative request may take.

Knows: what a request asks for and the bound of one that asks for nothing. Refuses to know: what is done.
Invariant: an item whose time is over is answered; it is not begun, or ended where nothing is half done, or left to finish alone.
"""

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from braidlog.model.world import World

T = TypeVar("T")

SECONDS_USUAL: Final = 60.0
"""Of a request that names no time."""
SECONDS_MAX: Final = 300.0


class Deadline:
    """Of one request: all its items share it."""

    def __init__(self, world: World, timeout_ms: int = 0) -> None:
        self._world = world
        self._until = world.monotonic() + (min(timeout_ms / 1000, SECONDS_MAX) if timeout_ms > 0 else SECONDS_USUAL)

    async def of(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. `BrokerError` TIMED_OUT: the time is over, and what became of it may be unknown."""
        return await self._world.within(self._until - self._world.monotonic(), work)
