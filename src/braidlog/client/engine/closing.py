"""What is closed once, at the end: `async with` and `close`.

Invariant: whatever closing raises is raised when all is stopped; who closes twice closes once.
"""

from abc import ABC, abstractmethod
from typing import Self

from braidlog.client.errors import ClosedError


class AsyncClosing(ABC):
    _closed = False

    async def close(self) -> None:
        """Flush what there is to flush, then stop. What that raises is raised when all is stopped."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._finish()
        finally:
            self.abandon()

    async def _finish(self) -> None:  # noqa: B027 - most have nothing to finish
        """What is still to be done or said before it stops."""

    @abstractmethod
    def abandon(self) -> None:
        """Stop at once: what is not acknowledged fails, as closed or as unknown."""

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {type(self).__name__.lower()} is closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncConnection(AsyncClosing):
    """What `connect` gives."""

    @abstractmethod
    async def open(self) -> Self:
        """See that somebody is there."""
