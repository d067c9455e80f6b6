"""The port behind which the store's log stands: changes go in and are numbered.

The store knows no more of its log than this. On one node it is a write-ahead log in a folder (wal.py); a partition that
several nodes have can take its place.
"""

from typing import Protocol

from braidlog.model.errors import StorageFault


class MutationLog(Protocol):
    """One verb, and why it is refused. The log's owner waits until a change is durable."""

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
