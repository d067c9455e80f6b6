"""Counts all keys of a cluster: each node counts the slots that it leads, and the requested node adds the counts.

Does not handle: counting (`slot_stats.py`), the transport of calls.
Invariant: the counts cover all live nodes, or the request fails. A slot without a leader is not counted.
"""

from typing import Final

import msgspec

from braidlog.broker.forwarding import Call, Forwarding
from braidlog.broker.keys.key_service import KeyValue
from braidlog.broker.routing import Routing
from braidlog.coordinator.state_limits import NODE
from braidlog.kv.engine.operations import Stats
from braidlog.model.errors import BrokerError, Reason

CALL: Final = "key-counts"


class KeyCounts:
    """Adds the counts of all live nodes."""

    def __init__(self, keyvalue: KeyValue, routing: Routing, forwarding: Forwarding) -> None:
        self._keyvalue = keyvalue
        self._routing = routing
        self._forwarding = forwarding
        forwarding.answers[CALL] = self.handle_call

    async def gathered(self) -> Stats:
        """Return the sums over all nodes; the uptime is that of this node."""
        own, routing = self._keyvalue.stats(), self._routing
        others = [each for each in routing.numbers if each != routing.own_number and routing.is_live(each)]
        told = await self._forwarding.together([self._ask(node) for node in others])
        for node, each in zip(others, told, strict=True):
            if isinstance(each, BrokerError):
                raise BrokerError(Reason.TIMED_OUT, f"node {node} does not report its part of the counts: {each}")
        return added([own, *(each for each in told if isinstance(each, Stats))])

    async def _ask(self, node: int) -> Stats:
        answer = await self._forwarding.ask(node, Call(CALL, NODE, b"", changes=False))
        try:
            return msgspec.msgpack.decode(answer, type=Stats)
        except msgspec.MsgspecError as error:
            raise BrokerError(Reason.UNAVAILABLE, f"its answer is none: {error}") from None

    async def handle_call(self, _: bytes) -> bytes:
        """Return this node's counts to another node."""
        return msgspec.msgpack.encode(self._keyvalue.stats())


def added(told: list[Stats]) -> Stats:
    """Return the sums; the uptime is that of the first."""
    sums = {name: sum(getattr(each, name) for each in told) for name in Stats.__struct_fields__}
    sums["uptime_seconds"] = told[0].uptime_seconds
    sums["snapshot_taken_ms"] = max(each.snapshot_taken_ms for each in told)
    return Stats(**sums)
