"""Ports to time, wake-ups and durability. The server implements them with asyncio and threads; tests have simple
ones.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from braidlog.codec.batch.records_section import Row
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import Flush


class InternalLog(Protocol):
    """A log of batches that are read back as rows."""

    def append(self, batch: bytes) -> int:
        """Append a batch. Returns the offset below which the log must be durable for the batch to be."""
        ...

    def durable(self, next_offset: int) -> Awaitable[None]:
        """Wait until everything below is durable; raises if that fails."""
        ...

    def sync(self) -> None:
        """Make everything durable now, blocking: used while no client is served yet."""
        ...

    def rows(self) -> Iterator[Row]:
        """Yield every record in order: (offset, timestamp, key, value, headers)."""
        ...

    def replace(self, batch: bytes) -> None:
        """Replace everything before this batch with it; blocks. The old or the new content is always durable."""
        ...

    def close(self) -> None: ...


T = TypeVar("T")


class FlushSettings(Protocol):
    """When a log must be synced."""

    @property
    def flush(self) -> Flush: ...

    @property
    def flush_interval_ms(self) -> int: ...

    @property
    def flush_window_bytes(self) -> int: ...


class Syncable(Protocol):
    """A log that a sync makes durable: a partition, or the log of the key-value store."""

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
    """One waiter's wait, used once."""

    def wake(self) -> None:
        """End the wait. May be called several times."""
        ...

    def wait(self, timeout: float) -> Awaitable[bool]:
        """Return True when woken, False on time-out."""
        ...


def timed_out(seconds: float) -> BrokerError:
    if seconds <= 0:
        return BrokerError(Reason.TIMED_OUT, "the request timed out before it started; nothing was changed, retry it")
    return BrokerError(
        Reason.TIMED_OUT, f"not done within {seconds:.3g} s; it may still complete: check the result before you retry"
    )


class Runtime(Protocol):
    """Time, wake-ups, durability.

    When a client disconnects, its request can be cancelled only at a `Wakeup`. Waits for durability and for files
    complete, so that no change stays half done.
    """

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    def wakeup(
        self, *, patient: bool = False, owed: bool = False, parked: bool = False, polling: bool = False
    ) -> Wakeup:
        """Return a wait. `patient`: the waiter holds nothing that others need, and its wait may be extended. `owed`:
        it has made a change; a stopping node lets it respond first. `parked`: it waits for other clients, and ends
        when its own client disconnects. `polling`: it waits for another node's long poll, and times out when its
        client disconnects.
        """
        ...

    def durable(self, log: Syncable, next_offset: int) -> Awaitable[None]:
        """Wait until everything below `next_offset` is on disk; raises the `StorageFault` if that fails."""
        ...

    def within(self, seconds: float, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Return what `work` returns or raises. On time-out raises `BrokerError` TIMED_OUT: `work` then ends at its
        next `Wakeup`, or finishes without a waiter. The same happens if the waiter is cancelled.
        """
        ...

    def blocking(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run blocking work (creating or removing files) outside the event loop; return its result or raise its
        error.
        """
        ...

    def appended(self, log: Syncable) -> None:
        """Schedule a sync of appended data that no caller waits for."""
        ...

    def sync_soon(self, log: Syncable, then: Callable[[], object]) -> None:
        """Sync soon, then call `then`: no producer waits, but readers see only durable records.

        `then` is not called if the sync fails: the partition has stopped and reports that itself.
        """
        ...
