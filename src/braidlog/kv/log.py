"""The port behind which the store's log stands: changes go in, are numbered, and become durable.

The store knows no more of its log than this. On one node it is a write-ahead log in a folder (wal.py); a partition that
several nodes have can take its place.
"""

from collections.abc import Awaitable, Sequence
from typing import Protocol

import msgspec

from braidlog.model.errors import StorageFault
from braidlog.model.settings import Flush


class Change(msgspec.Struct, frozen=True, gc=False):
    """A mutation as the log keeps it. Whoever applies the changes in their order has the same keys."""

    op: int
    key: bytes
    argument: bytes
    ttl_seconds: int
    wall_ms: int
    counter: int


class MutationLog(Protocol):
    """Two verbs, and why they are refused."""

    @property
    def fault(self) -> StorageFault | None:
        """Why the log has stopped, if it has: from then on its store answers nothing else."""
        ...

    def append(self, changes: Sequence[Change]) -> int:
        """Take one or more changes, all or none; return the sequence of the last. Neither waits nor suspends."""
        ...

    def durable(self, sequence: int, flush: Flush = Flush.ACK) -> Awaitable[None]:
        """Return when everything up to `sequence` is kept as `flush` says: ack, on the disk; else with the kernel."""
        ...
