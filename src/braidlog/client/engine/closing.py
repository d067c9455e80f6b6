"""`async with` for what is closed at the end."""

from abc import ABC, abstractmethod
from typing import Self


class AsyncClosing(ABC):
    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncConnection(AsyncClosing):
    """What `connect` gives."""

    @abstractmethod
    async def open(self) -> Self:
        """See that somebody is there."""

    @abstractmethod
    def abandon(self) -> None:
        """Stop at once: what is not acknowledged fails, as closed or as unknown."""
