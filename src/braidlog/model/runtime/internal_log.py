"""Port for a log in which a node stores its metadata; `partition/internal/internal_topic.py` implements it.

Invariants: an append neither blocks nor suspends, and is written completely or not at all. What was durable comes
back in `rows`, in order, until it is replaced.
"""

from collections.abc import Awaitable, Iterator
from typing import Protocol

from braidlog.codec.batch.records_section import Row


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
