"""The brokers that an administrator made known: who else there is, and where.

Knows: numbers, addresses, epochs. Refuses to know: how a broker is reached, which partitions it has.
Invariants: a broker that was acknowledged as registered is known after a crash; an epoch never goes back; this node is always one
of them.
"""

import msgspec

from braidlog.coordinator.journal import Table
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.world import World

BROKERS_MAX = 1_000
"""Each one is an entry in the node's journal for good."""


class Broker(msgspec.Struct, frozen=True):
    host: str
    port: int
    epoch: int = 0


class Brokers:
    """The use case."""

    def __init__(self, table: Table, world: World, node: str) -> None:
        self._table = table
        self._world = world
        self._seen_ms: dict[int, int] = {}
        self.own_number = broker_number(node) or 0

    async def register(self, number: int, host: str, port: int, epoch: int | None = None) -> Broker:
        """Make a broker known, or its new address; durable when this returns. Without an epoch the known one stays."""
        known: Broker | None = self._table.get(number)
        if known is not None and epoch is not None and epoch < known.epoch:
            raise BrokerError(
                Reason.STALE_LEADER_EPOCH, f"broker {number} is registered with epoch {known.epoch}, not {epoch}"
            )
        if known is None and len(self._table.values) >= BROKERS_MAX:
            raise BrokerError(Reason.QUOTA_EXCEEDED, f"{BROKERS_MAX} brokers are registered, and no more can be")
        kept = known.epoch if known is not None else 0
        broker = Broker(host, port, kept if epoch is None else epoch)
        next_offset = self._table.put(number, value=broker)
        self._seen_ms[number] = self._world.now_ms()
        await self._table.journal.settled(next_offset)
        return broker

    def heartbeat(self, number: int) -> None:
        """A broker says that it lives."""
        self.require(number)
        self._seen_ms[number] = self._world.now_ms()

    def require(self, number: int) -> None:
        if number != self.own_number and self._table.get(number) is None:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"broker {number} is not registered")

    def numbers(self) -> list[int]:
        return sorted({self.own_number, *(int(key[0]) for key, _ in self._table.items())})

    def seen_ms(self, number: int) -> int | None:
        """When a broker was last heard of since this node started; None if it was not."""
        return self._seen_ms.get(number)


def broker_number(node: str) -> int | None:
    """A node's name as a broker's number, for protocols that know brokers by number; None if it is none of 31 bits."""
    return int(node) if node.isascii() and node.isdigit() and len(node) <= 9 else None
