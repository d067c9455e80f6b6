"""Allocation of producer ids; each id is given once.

Invariant: ids come from a block that was durably assigned to this node before its first id was given. A crash wastes
the rest of a block and never repeats it.
"""

from braidlog.cluster.metadata.events import Event, IdBlock
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime

BLOCK = 1000
_TURN = "a block of producer ids"


class ProducerIds:
    """Allocates producer ids."""

    def __init__(self, metadata: Metadata, runtime: Runtime) -> None:
        self._metadata = metadata
        self._turns = KeyedLock(runtime)
        self._next = self._limit = 0
        self._reserve: tuple[int, int] | None = None

    async def allocate(self) -> int:
        """Return a new producer id."""
        if self._next >= self._limit:
            async with self._turns.acquire(_TURN):
                if self._next >= self._limit:  # otherwise the previous lock holder has allocated one
                    self._next, self._limit = self._reserve or await self._take_block()
                    self._reserve = None
        self._next += 1
        return self._next - 1

    async def fill_reserve(self) -> None:
        """Allocate a block in advance, so that new producers can start during a metadata outage."""
        if self._reserve is None:
            async with self._turns.acquire(_TURN):
                if self._reserve is None:
                    self._reserve = await self._take_block()

    async def _take_block(self) -> tuple[int, int]:
        limit = 0

        def decide(image: Image) -> list[Event]:
            nonlocal limit
            limit = image.ids_taken + BLOCK
            return [IdBlock(taken=limit)]

        await self._metadata.change(decide)
        return limit - BLOCK, limit  # not the image's current value: other nodes may have taken blocks since
