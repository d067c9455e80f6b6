"""The port of the store's log: appends changes and numbers them.

The store uses its log only through this port. Without a cluster it is a write-ahead log in a folder (wal.py), in
a cluster a replicated partition.
"""

from typing import Protocol

from braidlog.model.errors import StorageFault


class MutationLog(Protocol):
    """Appends changes. The log's owner waits until a change is durable."""

    @property
    def fault(self) -> StorageFault | None:
        """Why the log has stopped, if it has; the store then refuses all operations."""
        ...

    def append(self, op: int, key: bytes, argument: bytes, ttl_seconds: int, stamp: tuple[int, int]) -> int:
        """Append a change made at `stamp` (wall time, counter); return its sequence. Does not wait.

        Applying all changes in order gives the same keys. The parameters are not an object: this is called for
        every mutation, and an object would cost a twentieth of it.
        """
        ...
