"""Base classes for objects that are closed once: `async with` and `close`.

Errors during closing are raised after everything is stopped. A second `close` has no effect.
"""

from abc import ABC, abstractmethod
from typing import Self

from braidlog.client.errors import ClosedError


class AsyncClosing(ABC):
    _closed = False

    async def close(self) -> None:
        """Flush, then stop. Errors are raised after everything is stopped."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._finish()
        finally:
            self.abandon()

    async def _finish(self) -> None:  # noqa: B027 - most have nothing to finish
        """Finish pending work before stopping."""

    @abstractmethod
    def abandon(self) -> None:
        """Stop immediately: what is not acknowledged fails, as closed or as unknown."""

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {type(self).__name__.lower()} is closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncConnection(AsyncClosing):
    """The base of clients that `connect` returns."""

    @abstractmethod
    async def open(self) -> Self:
        """Check that a server answers."""
