"""The port behind which the store's log stands: changes go in, are numbered, and become durable.

The store knows no more of its log than this. On one node it is a write-ahead log in a folder (wal.py); a partition that
several nodes have can take its place.
"""

from collections.abc import Awaitable
from typing import Protocol

from braidlog.model.errors import StorageFault
from braidlog.model.settings import Flush


class MutationLog(Protocol):
    """Two verbs, and why they are refused."""

    @property
    def fault(self) -> StorageFault | None:
        """Why the log has stopped, if it has: from then on its store answers nothing else."""
        ...

    def append(self, op: int, key: bytes, argument: bytes, ttl_seconds: int, stamp: tuple[int, int]) -> int:
        """Take a change, made at `stamp` (wall time, counter); return its sequence. Neither waits nor suspends.

        Whoever applies the changes in their order has the same keys. Arguments, not an object: this is called for every
        mutation, and an object costs a twentieth of it.
        """
        ...

    def durable(self, sequence: int, flush: Flush = Flush.ACK) -> Awaitable[None]:
        """Return when everything up to `sequence` is kept as `flush` says: ack, on the disk; else with the kernel."""
        ...
