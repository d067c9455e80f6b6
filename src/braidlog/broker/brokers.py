"""The brokers that an administrator made known: who else there is, and where.

Knows: numbers, addresses, epochs. Refuses to know: how a broker is reached, which partitions it has.
Invariants: a broker that was acknowledged as registered is known after a crash; an epoch never goes back; this node is always one
of them. Who is fenced, like who was heard of, is known since this node started.
"""

from braidlog.cluster.events import AddNode, Event
from braidlog.cluster.image import Image
from braidlog.cluster.store import Metadata
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import own_number
from braidlog.model.world import World


class Brokers:
    """The use case."""

    def __init__(self, metadata: Metadata, world: World, node: str) -> None:
        self._metadata = metadata
        self._world = world
        self._seen_ms: dict[int, int] = {}
        self._started_ms = world.now_ms()
        self._fenced: set[int] = set()
        self._silent: set[int] = set()
        """Fenced for that alone: their next word ends it."""
        self.own_number = own_number(node)

    async def register(self, number: int, host: str, port: int, epoch: int | None = None) -> None:
        """Make a broker known, or its new address; durable when this returns. Without an epoch the known one stays."""

        def decide(image: Image) -> list[Event]:
            known = image.nodes.get(str(number))
            kept = 0 if known is None else known.epoch
            return [AddNode(node_id=str(number), addr=f"{host}:{port}", epoch=kept if epoch is None else epoch)]

        await self._metadata.change(decide)
        self._note_sign_of_life(number)

    def heartbeat(self, number: int) -> None:
        """A broker says that it lives."""
        self.require(number)
        self._note_sign_of_life(number)

    def _note_sign_of_life(self, number: int) -> None:
        self._seen_ms[number] = self._world.now_ms()
        self._silent.discard(number)

    def fence(self, number: int) -> None:
        """Another broker is to lead nothing any more."""
        self.require(number)
        if number == self.own_number:
            raise BrokerError(
                Reason.UNAVAILABLE,
                f"broker {number} is this node, and it is alone: nobody else could lead what it leads",
            )
        self._fenced.add(number)

    def unfence(self, number: int) -> None:
        self.require(number)
        self._fenced.discard(number)
        self._silent.discard(number)

    def fence_silent(self, timeout_ms: int) -> int:
        """Fence whoever has not been heard of for so long; how many that are besides those that were fenced before."""
        since = self._world.now_ms() - timeout_ms
        late = {number for number in self.numbers() if self._seen_ms.get(number, self._started_ms) < since}
        found = late - {self.own_number, *self.fenced}
        self._silent |= found
        return len(found)

    @property
    def fenced(self) -> list[int]:
        return sorted(self._fenced | self._silent)

    @property
    def is_only_one(self) -> bool:
        """Whether no broker but this node may lead."""
        return not {*self.numbers()} - {self.own_number, *self.fenced}

    def require(self, number: int) -> None:
        if number != self.own_number and str(number) not in self._metadata.image.nodes:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"broker {number} is not registered")

    def numbers(self) -> list[int]:
        return sorted({self.own_number, *map(int, self._metadata.image.nodes)})

    def seen_ms(self, number: int) -> int | None:
        """When a broker was last heard of since this node started; None if it was not."""
        return self._seen_ms.get(number)
