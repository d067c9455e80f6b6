"""Producer ids: each is given once, ever.

Knows: the next id. Refuses to know: what producers do with theirs.
Invariant: ids are taken from a block that was durable before its first id was given; a crash wastes the rest, never repeats it.
"""

from braidlog.cluster.events import Event, IdBlock
from braidlog.cluster.image import Image
from braidlog.cluster.store import Metadata
from braidlog.model.turns import Turns
from braidlog.model.world import World

BLOCK = 1000


class ProducerIds:
    """The use case."""

    def __init__(self, metadata: Metadata, world: World) -> None:
        self._metadata = metadata
        self._turns = Turns(world)
        self._next = self._limit = 0

    async def take(self) -> int:
        """A new producer id."""
        if self._next >= self._limit:
            async with self._turns.take("a block of producer ids"):
                if self._next >= self._limit:  # else whoever had the turn before has taken one
                    await self._metadata.change(_next_block)
                    self._limit = self._metadata.image.ids_taken
                    self._next = self._limit - BLOCK
        self._next += 1
        return self._next - 1


def _next_block(image: Image) -> list[Event]:
    return [IdBlock(taken=image.ids_taken + BLOCK)]
