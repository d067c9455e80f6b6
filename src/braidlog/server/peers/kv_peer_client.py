"""Calls to other nodes about keys: forwarded client requests, records salvaged from truncated logs, replica
comparisons.

Does not handle: connections (`node_calls.py`), slot leadership.
"""

import ssl
from typing import Final

from braidlog.adapters.peers.node_port import client_frame, to_forward
from braidlog.broker.forwarding import Call
from braidlog.broker.keys.kv_peer_service import KeyPeerService
from braidlog.broker.routing import Routing
from braidlog.kv.replicated.anti_entropy import Ask, KeyState, LeafState, Narrower, Reply, Same, Unknown
from braidlog.kv.replicated.log_records import SlotRecord
from braidlog.kv.replicated.salvage import Verdict
from braidlog.kv.replicated.slots import LOG_TOPIC
from braidlog.model.errors import NothingDoneError, NotLeaderError, Reason
from braidlog.model.runtime.runtime import Runtime
from braidlog.server.peers.dialing import AddressOf
from braidlog.server.peers.node_calls import NodeClient
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.asking import LeafKeys, RequestingConnection

SETTLED_SECONDS_MAX: Final = 10.0
COMPARED_SECONDS_MAX: Final = 5.0
"""During a comparison a follower may pause applying records."""


class KeyCalls(NodeClient):
    """Key calls of one node to all others, over the port shared with gossip."""

    def __init__(
        self,
        node: int,
        runtime: Runtime,
        address_of: AddressOf,
        exchange: KeyPeerService,
        routing: Routing,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(node, runtime, address_of, tls, lambda: RequestingConnection(exchange.sender))
        self._exchange = exchange
        self._routing = routing

    async def call(self, node: int, call: Call, seconds: float) -> bytes:
        """Forward a Mayfly client's request, see `broker/forwarding.py`."""
        forward = to_forward(call, self._exchange.stamp())
        return client_frame(call, await self.ask(node, forward, len(forward.body), seconds, changes=call.changes))

    async def replicate(self, number: int, record: SlotRecord) -> Verdict:
        """Send a truncated record to the leader of its log. Raises `BrokerError` if that is not possible now."""
        leader = self._leader_of(number)
        assert record.origin is not None, "a truncated record has an origin"
        message = m.Replicate(
            0, number, record.op, record.stamp.pack(), record.ttl_seconds, *record.origin, record.key, record.argument
        )
        answer = await self.ask(leader, message, len(record.argument), SETTLED_SECONDS_MAX, changes=False)
        if isinstance(answer, m.TopologyChanged):
            raise NothingDoneError(Reason.NOT_LEADER, f"node {leader} does not lead key log {number}")
        return Verdict.TAKEN if answer.is_settled else Verdict.TOO_OLD

    async def compare(self, number: int, ask: Ask) -> Reply:
        """Compare with the leader of a log. Raises `BrokerError` if the leader cannot answer now."""
        message = m.SyncRequest(number, ask.epoch, ask.offset, *ask.among, ask.digest)
        answer = await self.ask(self._leader_of(number), message, 0, COMPARED_SECONDS_MAX, changes=False)
        if isinstance(answer, LeafKeys):
            keys = [KeyState(each.key, each.kind, each.value, each.deadline_ms, each.stamp) for each in answer.keys]
            return LeafState(ask, answer.end.offset, tuple(keys))
        if isinstance(answer, m.SyncOk):
            return Same(ask)
        return Narrower(ask) if answer.verdict is m.Verdict.NARROWER else Unknown(ask)

    def _leader_of(self, number: int) -> int:
        known = self._routing.assignment(LOG_TOPIC, number) if self._routing.has_partition(LOG_TOPIC, number) else None
        if known is None or known.leader is None:
            raise NotLeaderError(LOG_TOPIC, number, f"key log {number} has no leader")
        return known.leader
