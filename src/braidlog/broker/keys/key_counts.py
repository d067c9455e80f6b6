"""Counts of all keys of a cluster: each node tells of the slots that it leads, and the node that is asked adds them up.

Knows: who is to be asked. Refuses to know: how counts are made (`slot_stats.py`), how calls travel.
Invariant: counts are of all nodes that live, or are refused. A slot that nobody leads at that moment is counted by nobody.
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
    """The use case."""

    def __init__(self, keyvalue: KeyValue, routing: Routing, forwarding: Forwarding) -> None:
        self._keyvalue = keyvalue
        self._routing = routing
        self._forwarding = forwarding
        forwarding.answers[CALL] = self.handle_call

    async def gathered(self) -> Stats:
        """Of all nodes. How long it has been up is told of one."""
        own, routing = self._keyvalue.stats(), self._routing
        others = [each for each in routing.numbers if each != routing.own_number and routing.is_live(each)]
        told = await self._forwarding.together([self._ask(node) for node in others])
        for node, each in zip(others, told, strict=True):
            if isinstance(each, BrokerError):
                raise BrokerError(Reason.TIMED_OUT, f"node {node} does not tell its part of the counts: {each}")
        return added([own, *(each for each in told if isinstance(each, Stats))])

    async def _ask(self, node: int) -> Stats:
        answer = await self._forwarding.ask(node, Call(CALL, NODE, b"", changes=False))
        try:
            return msgspec.msgpack.decode(answer, type=Stats)
        except msgspec.MsgspecError as error:
            raise BrokerError(Reason.UNAVAILABLE, f"its answer is none: {error}") from None

    async def handle_call(self, _: bytes) -> bytes:
        """What another node asks of this one."""
        return msgspec.msgpack.encode(self._keyvalue.stats())


def added(told: list[Stats]) -> Stats:
    """As of one node; the first says how long it has been up."""
    sums = {name: sum(getattr(each, name) for each in told) for name in Stats.__struct_fields__}
    sums["uptime_seconds"] = told[0].uptime_seconds
    sums["snapshot_taken_ms"] = max(each.snapshot_taken_ms for each in told)
    return Stats(**sums)
