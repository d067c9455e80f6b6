"""Whether the leaders of a topic serve it: the metadata names a leader before its node leads, and until a dead node is fenced.

Knows: who leads by the metadata, what each of them answers. Refuses to know: who is dead, who leads next.
"""

import contextlib
from collections import Counter
from typing import Final

import msgspec

from braidlog.broker.forwarding import LOOK_SECONDS, LOOK_SECONDS_MAX, Call, Forwarding
from braidlog.broker.routing import Routing
from braidlog.cluster.store import Metadata
from braidlog.cluster.topic import Topic
from braidlog.coordinator.holdings import NODE
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.world import World
from braidlog.partition.hosted import Role
from braidlog.partition.hosting import Hosting

CALL: Final = "leads"
SERVED_SECONDS_MAX: Final = 5.0
"""How long leaders are waited for. Most fail-overs and first elections are over by then."""


class TopicLeaders:
    """`await wait(name)` before a client is sent to a leader."""

    def __init__(
        self, metadata: Metadata, hosting: Hosting, routing: Routing, forwarding: Forwarding, world: World
    ) -> None:
        self._metadata = metadata
        self._hosting = hosting
        self._routing = routing
        self._forwarding = forwarding
        self._world = world
        forwarding.names.add(CALL)

    async def wait(self, name: str) -> None:
        """Return when each partition of a topic has a leader that serves it, or when `SERVED_SECONDS_MAX` are over."""
        if self._forwarding.calls is not None:
            with contextlib.suppress(BrokerError):
                await self._world.within(SERVED_SECONDS_MAX, self._wait(name))

    async def _wait(self, name: str) -> None:
        pause = LOOK_SECONDS
        while (topic := self._metadata.image.topics.get(name)) is not None and not await self._is_served(topic):
            await self._world.wakeup().wait(pause)
            pause = min(2 * pause, LOOK_SECONDS_MAX)

    async def _is_served(self, topic: Topic) -> bool:
        led = Counter(each.leader for each in topic.assignments)
        for node, count in led.items():
            if node is None or not await self._serves(node, Led(topic.topic_id, count)):
                return False
        return True

    async def _serves(self, node: int, led: "Led") -> bool:
        if node == self._routing.own_number:
            return self._leads(led)
        try:
            return bool(await self._forwarding.ask(node, Call(CALL, NODE, msgspec.msgpack.encode(led), changes=False)))
        except BrokerError:
            return False

    async def answer(self, body: bytes) -> bytes:
        """What another node asks of this one; empty: it does not serve them yet."""
        try:
            return b"1" if self._leads(msgspec.msgpack.decode(body, type=Led)) else b""
        except msgspec.MsgspecError as error:
            raise BrokerError(Reason.INVALID_RECORD, f"{CALL}: {error}") from None

    def _leads(self, asked: "Led") -> bool:
        """Whether this node serves what the metadata says that it leads, and knows of as much as the node that asks."""
        topic = self._metadata.image.topics.get(self._hosting.name_of(asked.topic_id) or "")
        if topic is None:
            return False
        led = [number for number, each in enumerate(topic.assignments) if each.leader == self._routing.own_number]
        hosted = [self._hosting.hosted(topic.name, number) for number in led]
        return len(led) >= asked.partitions and all(each is not None and each.role is Role.LEADER for each in hosted)


class Led(msgspec.Struct, frozen=True, array_like=True):
    """How many partitions of a topic a node leads, as the node has it that asks."""

    topic_id: str
    partitions: int
