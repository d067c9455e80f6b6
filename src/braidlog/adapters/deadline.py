"""The deadline of an administrative request.

Invariant: an item that exceeds the deadline is answered. It is not started, or cancelled before it changes anything,
or left to finish without a waiter.
"""

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from braidlog.model.world import World

T = TypeVar("T")

SECONDS_USUAL: Final = 60.0
"""Default for a request without a time-out."""
SECONDS_MAX: Final = 300.0


class Deadline:
    """The deadline of one request, shared by all its items."""

    def __init__(self, world: World, timeout_ms: int = 0) -> None:
        self._world = world
        self._until = world.monotonic() + (min(timeout_ms / 1000, SECONDS_MAX) if timeout_ms > 0 else SECONDS_USUAL)

    async def of(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. `BrokerError` TIMED_OUT: the deadline has passed, and the outcome may be
        unknown.
        """
        return await self._world.within(self._until - self._world.monotonic(), work)
