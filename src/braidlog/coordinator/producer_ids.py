"""Producer ids: each is given once, ever.

Knows: the next id. Refuses to know: what producers do with theirs.
Invariant: ids are taken from a block that was durable before its first id was given; a crash wastes the rest, never repeats it.
"""

import msgspec

from braidlog.coordinator.journal import Table

BLOCK = 1000


class IdBlock(msgspec.Struct, frozen=True):
    """Every id below was given or wasted."""

    taken: int


class ProducerIds:
    """The use case."""

    def __init__(self, table: Table) -> None:
        self._table = table
        block: IdBlock | None = table.get("next")
        self._next = self._limit = block.taken if block is not None else BLOCK

    async def take(self) -> int:
        """A new producer id."""
        while self._next >= self._limit:
            start = self._limit
            await self._table.journal.settled(self._table.put("next", value=IdBlock(start + BLOCK)))
            if self._limit == start:  # else another call was faster and has taken the block that follows ours
                self._next, self._limit = start, start + BLOCK
        self._next += 1
        return self._next - 1
