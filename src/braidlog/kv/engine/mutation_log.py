"""The interface of the store's log, which numbers changes.

On one node it is a write-ahead log in a folder (wal.py); a replicated partition can take its place.
"""

from typing import Protocol

from braidlog.model.errors import StorageFault


class MutationLog(Protocol):
    """Appends changes. The log's owner waits until a change is durable."""

    @property
    def fault(self) -> StorageFault | None:
        """Why the log has stopped, or None. After a fault the store raises it for every operation."""
        ...

    def append(self, op: int, key: bytes, argument: bytes, ttl_seconds: int, stamp: tuple[int, int]) -> int:
        """Append a change made at `stamp` (wall time, counter); return its sequence. Neither blocks nor suspends.

        Applying the changes in order gives the same keys. The parameters are not an object because this runs for
        every mutation, and an object costs a twentieth of it.
        """
        ...
