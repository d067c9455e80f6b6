"""A log that a node keeps for itself, as a port: what its metadata are written to.

Knows: shapes. Does not know: segments, folders (`partition/internal_topic.py`).
Invariants: an append neither waits nor suspends and is taken whole or not at all; what was durable once comes back in `rows`, in
its order, until it is replaced.
"""

from collections.abc import Awaitable, Iterator
from typing import Protocol

from braidlog.codec.section import Row


class InternalLog(Protocol):
    """Batches in, rows out."""

    def append(self, batch: bytes) -> int:
        """Append a batch; returns the offset below which the log must be durable for it to be."""
        ...

    def durable(self, next_offset: int) -> Awaitable[None]:
        """Done when everything below is durable; raises if that cannot be."""
        ...

    def sync(self) -> None:
        """Make everything durable at once: for whoever has the log alone, before anyone is served."""
        ...

    def rows(self) -> Iterator[Row]:
        """Every record in order: (offset, timestamp, key, value, headers)."""
        ...

    def replace(self, batch: bytes) -> None:
        """Let a batch stand for everything before it, which goes; blocks. At any moment one of the two is durable."""
        ...

    def close(self) -> None: ...
