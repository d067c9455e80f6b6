"""The brokers that clients see: nodes of this cluster, and brokers that an administrator registered.

Does not handle: connections to brokers, their partitions, draining.
Invariants: an acknowledged registration survives a crash; an epoch never decreases; this node is always in the
list. Fences and heartbeats are kept in memory since this node started.
"""

from braidlog.cluster.membership import Member
from braidlog.cluster.metadata.events import AddNode, Event
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import own_number
from braidlog.model.runtime.runtime import Runtime


class Brokers:
    """Registers, fences and lists brokers."""

    def __init__(self, metadata: Metadata, runtime: Runtime, node: str) -> None:
        self._metadata = metadata
        self._runtime = runtime
        self._seen_ms: dict[int, int] = {}
        self._started_ms = runtime.now_ms()
        self._fenced: set[int] = set()
        self._silent: set[int] = set()
        """Fenced only for missing heartbeats: their next heartbeat unfences them."""
        self.own_number = own_number(node)

    async def register(self, number: int, host: str, port: int, epoch: int | None = None) -> None:
        """Register a broker or its new address; durable on return. Without an epoch, the known epoch is kept."""

        def decide(image: Image) -> list[Event]:
            known = image.nodes.get(str(number))
            kept = 0 if known is None else known.epoch
            return [AddNode(node_id=str(number), addr=f"{host}:{port}", epoch=kept if epoch is None else epoch)]

        await self._metadata.change(decide)
        self._note_sign_of_life(number)

    def heartbeat(self, number: int) -> None:
        """Record a heartbeat of a broker."""
        self.require(number)
        self._note_sign_of_life(number)

    def _note_sign_of_life(self, number: int) -> None:
        self._seen_ms[number] = self._runtime.now_ms()
        self._silent.discard(number)

    def fence(self, number: int) -> None:
        """Fence another broker, so that it leads no partition."""
        self.require(number)
        if number == self.own_number:
            raise BrokerError(
                Reason.UNAVAILABLE,
                f"broker {number} is this node, and it is the only one: no other node can lead its partitions",
            )
        self._fenced.add(number)

    def unfence(self, number: int) -> None:
        self.require(number)
        self._fenced.discard(number)
        self._silent.discard(number)

    def fence_silent(self, timeout_ms: int) -> int:
        """Fence brokers without a heartbeat for `timeout_ms`; return their count. Nodes of a cluster monitor each
        other."""
        since = self._runtime.now_ms() - timeout_ms
        others = {*self.numbers()} - {self.own_number, *self._nodes}
        late = {number for number in others if self._seen_ms.get(number, self._started_ms) < since}
        found = late - {*self.fenced}
        self._silent |= found
        return len(found)

    @property
    def fenced(self) -> list[int]:
        """Brokers that may not lead: fenced by an administrator or for silence, or nodes that are fenced or
        draining."""
        nodes = self._nodes
        leaving = {number for number, each in nodes.items() if each.is_fenced or each.is_draining}
        return sorted(((self._fenced | self._silent) - nodes.keys()) | leaving)

    def is_node(self, number: int) -> bool:
        """Return whether a broker is a node of this cluster. If so, the metadata decides whether it may lead."""
        return number in self._nodes

    @property
    def is_only_one(self) -> bool:
        """Return whether this node is the only broker that may lead."""
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
        """Return the time of the last heartbeat since this node started; None if there was none."""
        return self._seen_ms.get(number)
