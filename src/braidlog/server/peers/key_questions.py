"""What this node asks of others about keys: to serve its clients' requests, to take what was cut from its logs,
to compare replicas.

Knows: the messages. Refuses to know: connections (`node_calls.py`), who leads what.
"""

import ssl
from typing import Final

from braidlog.adapters.peers.forwarded_keys import forward_of, relayed
from braidlog.broker.forwarding import Call
from braidlog.broker.key_exchange import KeyExchange
from braidlog.broker.routing import Routing
from braidlog.kv.comparing import Ask, KeyTold, LeafTold, Narrower, Reply, Same, Unknown
from braidlog.kv.salvage import Verdict
from braidlog.kv.slot_records import SlotRecord
from braidlog.kv.slots import LOG_TOPIC
from braidlog.model.errors import NothingDoneError, NotLeaderError, Reason
from braidlog.model.world import World
from braidlog.server.peers.dialling import AddressOf
from braidlog.server.peers.node_calls import NodeQuestions
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.asking import AskingConnection, LeafKeys

SETTLED_SECONDS_MAX: Final = 10.0
COMPARED_SECONDS_MAX: Final = 5.0
"""Meanwhile a follower may hold what it applies to the log."""


class KeyQuestions(NodeQuestions):
    """Of one node to all others, on the port that they have for gossip and keys."""

    def __init__(
        self,
        node: int,
        world: World,
        address_of: AddressOf,
        exchange: KeyExchange,
        routing: Routing,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(node, world, address_of, tls, lambda: AskingConnection(exchange.sender))
        self._exchange = exchange
        self._routing = routing

    async def call(self, node: int, call: Call, seconds: float) -> bytes:
        """A request of a client of Mayfly's: see `broker/forwarding.py`."""
        forward = forward_of(call, self._exchange.stamp())
        return relayed(call, await self.ask(node, forward, len(forward.body), seconds, changes=call.changes))

    async def replicate(self, number: int, record: SlotRecord) -> Verdict:
        """To the leader of a log: what was cut here. `BrokerError`: not now."""
        leader = self._leader_of(number)
        assert record.origin is not None, "what was cut has one"
        message = m.Replicate(
            0, number, record.op, record.stamp.pack(), record.ttl_seconds, *record.origin, record.key, record.argument
        )
        answer = await self.ask(leader, message, len(record.argument), SETTLED_SECONDS_MAX, changes=False)
        if isinstance(answer, m.TopologyChanged):
            raise NothingDoneError(Reason.NOT_LEADER, f"node {leader} does not lead log {number} of keys")
        return Verdict.TAKEN if answer.is_settled else Verdict.TOO_OLD

    async def compare(self, number: int, ask: Ask) -> Reply:
        """Of the leader of a log: has it the same? `BrokerError`: it cannot be asked now."""
        message = m.SyncRequest(number, ask.epoch, ask.offset, *ask.among, ask.digest)
        answer = await self.ask(self._leader_of(number), message, 0, COMPARED_SECONDS_MAX, changes=False)
        if isinstance(answer, LeafKeys):
            keys = [KeyTold(each.key, each.kind, each.value, each.deadline_ms, each.stamp) for each in answer.keys]
            return LeafTold(ask, answer.end.offset, tuple(keys))
        if isinstance(answer, m.SyncOk):
            return Same(ask)
        return Narrower(ask) if answer.verdict is m.Verdict.NARROWER else Unknown(ask)

    def _leader_of(self, number: int) -> int:
        known = self._routing.assignment(LOG_TOPIC, number) if self._routing.has_partition(LOG_TOPIC, number) else None
        if known is None or known.leader is None:
            raise NotLeaderError(LOG_TOPIC, number, f"log {number} of keys has no leader")
        return known.leader
