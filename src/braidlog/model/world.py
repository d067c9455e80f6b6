"""What the services need of the world around them.

Knows: shapes. Refuses to know: asyncio, threads. The server has the real ones; tests have simple ones.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import Flush

T = TypeVar("T")


class FlushSettings(Protocol):
    """When something wants to be synced."""

    @property
    def flush(self) -> Flush: ...

    @property
    def flush_interval_ms(self) -> int: ...

    @property
    def flush_window_bytes(self) -> int: ...


class Syncable(Protocol):
    """What grows, and becomes durable by a sync: a partition, the log of the key-value store."""

    @property
    def settings(self) -> FlushSettings: ...

    @property
    def durable_offset(self) -> int:
        """Everything below survives power loss."""
        ...

    @property
    def unsynced_bytes(self) -> int: ...

    def sync(self, upto: int | None = None) -> int: ...


class Wakeup(Protocol):
    """Something one waiter waits on, once."""

    def wake(self) -> None:
        """End the wait. More than once is fine."""
        ...

    def wait(self, timeout: float) -> Awaitable[bool]:
        """True when woken, False when the time ran out first."""
        ...


def took_too_long(seconds: float) -> BrokerError:
    if seconds <= 0:
        return BrokerError(
            Reason.TIMED_OUT, "the request's time was over before this began; nothing was changed, try again"
        )
    return BrokerError(
        Reason.TIMED_OUT, f"not done within {seconds:.3g} s; it may be done later: look before you try again"
    )


class World(Protocol):
    """Time, waking, durability.

    When a client goes away, its request may end at a `Wakeup` and nowhere else: what waits for durability or for files goes on
    to its end, so that no change is left half-way.
    """

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    def wakeup(
        self, *, patient: bool = False, owed: bool = False, parked: bool = False, polling: bool = False
    ) -> Wakeup:
        """Something to wait on. A `patient` waiter holds nothing that others wait for, and may be made to wait longer. One that
        is `owed` has changed something: a node that stops lets it answer first. One that is `parked` waits for other clients, and
        ends when its own has closed. One that is `polling` waits for another node's long poll, and runs out when its client has
        closed."""
        ...

    def durable(self, log: Syncable, next_offset: int) -> Awaitable[None]:
        """Done when everything below `next_offset` is on the disk; raises the `StorageFault` if it cannot be."""
        ...

    def within(self, seconds: float, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Return what `work` returns or raises. `BrokerError` TIMED_OUT if that takes longer: `work` then ends at its next
        `Wakeup`, or finishes without a waiter. The same if the waiter itself is ended."""
        ...

    def blocking(self, work: Callable[[], T]) -> Awaitable[T]:
        """Do something slow (files made or removed) beside the loop, and give back what it returned or raised."""
        ...

    def appended(self, log: Syncable) -> None:
        """Something was appended that nobody waits for: see that it is synced in its time."""
        ...

    def sync_soon(self, log: Syncable, then: Callable[[], object]) -> None:
        """Nobody waits for what was appended, but readers see only what is durable: sync it, then call `then`.

        If the sync fails `then` is not called: the partition has stopped and says so itself.
        """
        ...
