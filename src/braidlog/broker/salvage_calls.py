"""What one node has cut from the log of a slot is handed to the node that leads it.

Knows: who leads. Refuses to know: what counts (kv/salvage.py), how calls travel.
"""

from typing import Final

import msgspec

from braidlog.broker.forwarding import Call, Forwarding
from braidlog.broker.routing import Routing
from braidlog.broker.slots import Slots
from braidlog.codec.errors import ProtocolError
from braidlog.coordinator.holdings import NODE
from braidlog.kv.salvage import Verdict
from braidlog.kv.slot_records import SlotRecord, unpack_record
from braidlog.kv.slots import LOG_TOPIC
from braidlog.model.errors import BrokerError, NotLeaderError, Reason

CALL: Final = "kv-salvage"


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """One mutation."""

    slot: int
    key: bytes
    record: bytes


class SalvageCalls:
    """`send` on the node that has cut something, `answer` on the leader."""

    def __init__(self, slots: Slots, routing: Routing, forwarding: Forwarding) -> None:
        self._slots = slots
        self._routing = routing
        self._forwarding = forwarding
        forwarding.names.add(CALL)

    async def send(self, slot: int, record: SlotRecord) -> Verdict:
        """Once; whoever sends it again sends the same origin."""
        leader = self._routing.leader_of_slot(slot)
        if leader is None:
            raise NotLeaderError(LOG_TOPIC, slot, f"nobody leads slot {slot} now")
        body = msgspec.msgpack.encode(Cut(slot, record.key, record.pack()))
        answer = await self._forwarding.ask(leader, Call(CALL, NODE, body))
        try:
            return Verdict[answer.decode()]
        except (KeyError, UnicodeDecodeError):
            raise BrokerError(Reason.UNAVAILABLE, f"node {leader} gives no verdict that is known here") from None

    async def answer(self, body: bytes) -> bytes:
        try:
            cut = msgspec.msgpack.decode(body, type=Cut)
            record = unpack_record(cut.key, cut.record)
        except (msgspec.MsgspecError, ProtocolError) as error:
            raise BrokerError(Reason.INVALID_RECORD, f"another node sends no mutation of a slot: {error}") from None
        if record.origin is None:
            raise BrokerError(Reason.INVALID_RECORD, "another node sends a mutation without its origin")
        return (await self._slots.replicate(cut.slot, record)).name.encode()
