"""Producer ids: each is given once, ever.

Knows: the next id. Refuses to know: what producers do with theirs.
Invariant: ids are taken from a block that was durable before its first id was given, and that this node was given; a crash wastes
the rest, never repeats it.
"""

from braidlog.cluster.events import Event, IdBlock
from braidlog.cluster.image import Image
from braidlog.cluster.store import Metadata
from braidlog.model.turns import Turns
from braidlog.model.world import World

BLOCK = 1000
_TURN = "a block of producer ids"


class ProducerIds:
    """The use case."""

    def __init__(self, metadata: Metadata, world: World) -> None:
        self._metadata = metadata
        self._turns = Turns(world)
        self._next = self._limit = 0
        self._reserve: tuple[int, int] | None = None

    async def take(self) -> int:
        """A new producer id."""
        if self._next >= self._limit:
            async with self._turns.take(_TURN):
                if self._next >= self._limit:  # else whoever had the turn before has taken one
                    self._next, self._limit = self._reserve or await self._take_block()
                    self._reserve = None
        self._next += 1
        return self._next - 1

    async def fill_reserve(self) -> None:
        """Have a block ahead, where the metadata may be away when it is needed: new producers then go on for a while."""
        if self._reserve is None:
            async with self._turns.take(_TURN):
                if self._reserve is None:
                    self._reserve = await self._take_block()

    async def _take_block(self) -> tuple[int, int]:
        limit = 0

        def decide(image: Image) -> list[Event]:
            nonlocal limit
            limit = image.ids_taken + BLOCK
            return [IdBlock(taken=limit)]

        await self._metadata.change(decide)
        return limit - BLOCK, limit  # not what the image says now: others may have taken blocks since
