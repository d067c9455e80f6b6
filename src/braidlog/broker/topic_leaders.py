"""Waits until a topic's leaders serve it. The metadata names a leader before that node leads, and until a dead node
is fenced.

Does not handle: detecting dead nodes, electing leaders.
"""

import contextlib
from collections import Counter
from typing import Final

import msgspec

from braidlog.broker.forwarding import LOOK_SECONDS, LOOK_SECONDS_MAX, Call, Forwarding, read_asked
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.cluster.replica_placement import live
from braidlog.coordinator.state_limits import NODE
from braidlog.model.errors import BrokerError
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition_registry import PartitionRegistry

CALL: Final = "leads"
SERVED_SECONDS_MAX: Final = 5.0
"""How long to wait for leaders. Most fail-overs and first elections finish within this time."""


Led = tuple[str, int]
"""A topic's id, and the count of partitions that the called node leads in the caller's metadata."""


class TopicLeaders:
    """`await wait(name)` before a client is directed to a leader."""

    def __init__(
        self, metadata: Metadata, hosting: PartitionRegistry, forwarding: Forwarding, runtime: Runtime
    ) -> None:
        self._metadata = metadata
        self._hosting = hosting
        self._forwarding = forwarding
        self._runtime = runtime
        forwarding.answers[CALL] = self.handle_call

    async def wait(self, name: str, *, followers: bool = False) -> None:
        """Wait until each partition of a topic has a serving leader, for `SERVED_SECONDS_MAX` at most.

        `followers`: also until its live followers have created it.
        """
        if self._forwarding.calls is not None:
            with contextlib.suppress(BrokerError):
                await self._runtime.within(SERVED_SECONDS_MAX, self._wait(name, followers=followers))

    async def _wait(self, name: str, *, followers: bool) -> None:
        pause = LOOK_SECONDS
        while not await self._is_served(name, followers=followers):
            await self._runtime.wakeup().wait(pause)
            pause = min(2 * pause, LOOK_SECONDS_MAX)

    async def _is_served(self, name: str, *, followers: bool) -> bool:
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            return True
        led: Counter[int | None] = Counter(each.leader for each in topic.assignments)
        if followers:
            holders = {node for each in topic.assignments for node in each.replicas}
            led.update(dict.fromkeys(holders.intersection(live(self._metadata.image.cluster)), 0))
        for node, count in led.items():
            if node is None or not await self._serves(node, (topic.topic_id, count)):
                return False
        return True

    async def _serves(self, node: int, led: Led) -> bool:
        if node == self._hosting.number:
            return self._leads(led)
        try:
            return bool(await self._forwarding.ask(node, Call(CALL, NODE, msgspec.msgpack.encode(led), changes=False)))
        except BrokerError:
            return False

    async def handle_call(self, body: bytes) -> bytes:
        """Return whether this node serves what the calling node expects it to lead; empty: not yet."""
        return b"1" if self._leads(read_asked(body, tuple[str, int])) else b""

    def _leads(self, asked: Led) -> bool:
        """Return whether this node leads all partitions that its metadata assigns to it, and at least as many as the
        caller expects."""
        topic = self._metadata.image.topics.get(self._hosting.name_of(asked[0]) or "")
        if topic is None:
            return False
        led = [number for number, each in enumerate(topic.assignments) if each.leader == self._hosting.number]
        hosted = [self._hosting.hosted(topic.name, number) for number in led]
        return len(led) >= asked[1] and all(each is not None and each.role is Role.LEADER for each in hosted)
