"""The brokers that an administrator made known: who else there is, and where.

Knows: numbers, addresses, epochs. Refuses to know: how a broker is reached, which partitions it has.
Invariants: a broker that was acknowledged as registered is known after a crash; an epoch never goes back; this node is always one
of them.
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
        self.own_number = own_number(node)

    async def register(self, number: int, host: str, port: int, epoch: int | None = None) -> None:
        """Make a broker known, or its new address; durable when this returns. Without an epoch the known one stays."""

        def decide(image: Image) -> list[Event]:
            known = image.nodes.get(str(number))
            kept = 0 if known is None else known.epoch
            return [AddNode(node_id=str(number), addr=f"{host}:{port}", epoch=kept if epoch is None else epoch)]

        await self._metadata.change(decide)
        self._seen_ms[number] = self._world.now_ms()

    def heartbeat(self, number: int) -> None:
        """A broker says that it lives."""
        self.require(number)
        self._seen_ms[number] = self._world.now_ms()

    def require(self, number: int) -> None:
        if number != self.own_number and str(number) not in self._metadata.image.nodes:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"broker {number} is not registered")

    def numbers(self) -> list[int]:
        return sorted({self.own_number, *map(int, self._metadata.image.nodes)})

    def seen_ms(self, number: int) -> int | None:
        """When a broker was last heard of since this node started; None if it was not."""
        return self._seen_ms.get(number)
