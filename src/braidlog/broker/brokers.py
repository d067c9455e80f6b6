"""The brokers that clients are shown: nodes of this cluster, and those that an administrator made known.

Knows: numbers, addresses, epochs. Refuses to know: how a broker is reached, which partitions it has, how a node is drained.
Invariants: a broker that was acknowledged as registered is known after a crash; an epoch never goes back; this node is always one
of them. Who is fenced, like who was heard of, is known since this node started.
"""

from braidlog.cluster.membership import Member
from braidlog.cluster.metadata.events import AddNode, Event
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import own_number
from braidlog.model.runtime.runtime import Runtime


class Brokers:
    """The use case."""

    def __init__(self, metadata: Metadata, runtime: Runtime, node: str) -> None:
        self._metadata = metadata
        self._runtime = runtime
        self._seen_ms: dict[int, int] = {}
        self._started_ms = runtime.now_ms()
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
        self._seen_ms[number] = self._runtime.now_ms()
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
        """Fence brokers without a heartbeat for so long; return how many. Nodes of a cluster watch each other."""
        since = self._runtime.now_ms() - timeout_ms
        others = {*self.numbers()} - {self.own_number, *self._nodes}
        late = {number for number in others if self._seen_ms.get(number, self._started_ms) < since}
        found = late - {*self.fenced}
        self._silent |= found
        return len(found)

    @property
    def fenced(self) -> list[int]:
        """Brokers that are to lead nothing: fenced here, or nodes that are fenced or draining."""
        nodes = self._nodes
        leaving = {number for number, each in nodes.items() if each.is_fenced or each.is_draining}
        return sorted(((self._fenced | self._silent) - nodes.keys()) | leaving)

    def is_node(self, number: int) -> bool:
        """Whether a broker is a node of this cluster: then the metadata says whether it may lead."""
        return number in self._nodes

    @property
    def is_only_one(self) -> bool:
        """Whether no broker but this node may lead."""
        return not {*self.numbers()} - {self.own_number, *self.fenced}

    def require(self, number: int) -> None:
        if number != self.own_number and str(number) not in self._metadata.image.nodes:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"broker {number} is not registered")

    def numbers(self) -> list[int]:
        return sorted({self.own_number, *self._nodes, *map(int, self._metadata.image.nodes)})

    @property
    def _nodes(self) -> dict[int, Member]:
        return {int(number): member for number, member in self._metadata.image.cluster.members.items()}

    def seen_ms(self, number: int) -> int | None:
        """When a broker was last heard of since this node started; None if it was not."""
        return self._seen_ms.get(number)
