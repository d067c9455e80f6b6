"""The locks of one partition, who waits on them, and whether it still takes changes.

Knows: the order in which the locks are taken, the fault that stopped the partition. Refuses to know: what is changed.
Invariant: after a fault nothing is acknowledged again; whoever waits is woken by growth, a fault or the close.
"""

import threading
from collections.abc import Callable

from braidlog.model.errors import StorageFault


class Gate:
    """Locks are taken in the order of the fields, where more than one is."""

    def __init__(self, folder: str, *, closed: bool) -> None:
        self._folder = folder
        self.upkeep = threading.RLock()
        """Held by whoever exchanges or removes segments, from the first look to the last: a compaction must not put back
        what a truncation took away, nor outlive a close."""
        self.sync_lock = threading.RLock()
        """One sync at a time."""
        self.lock = threading.RLock()
        self.moved = threading.Condition(self.lock)
        self.followers = 0
        self.fault: StorageFault | None = None
        self.closed = closed

    def fail(self, fault: StorageFault) -> None:
        """Stop the partition: what is in memory may not be what is on the disk."""
        with self.lock:
            self.fault = StorageFault(
                f"the partition stopped after a fault and must be reopened: {fault}", self._folder
            )
            self.moved.notify_all()

    def check(self) -> None:
        if self.fault is not None:
            raise self.fault.again()

    def wait(self, is_reached: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `is_reached`, the close or a fault, which is raised; False if the time ran out first."""
        with self.lock:
            self.followers += 1
            try:
                moved = self.moved.wait_for(lambda: self.closed or self.fault is not None or is_reached(), timeout)
            finally:
                self.followers -= 1
            self.check()
            return moved
