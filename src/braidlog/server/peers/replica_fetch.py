"""Sends replication messages between nodes over Kafka's Fetch on the replica port.

Does not handle: replicas, delivery. The replication steps repeat lost messages.
"""

import ssl
from collections.abc import Callable

from braidlog.adapters.peers.follower_sessions import InSync
from braidlog.adapters.peers.handlers import PeersAdapter
from braidlog.adapters.peers.replica_messages import Place
from braidlog.broker.partition_reports import ReplicationRate
from braidlog.model.runtime.runtime import Runtime
from braidlog.replication.messages import Answer, Complaint, CorruptAnswer, Fetch
from braidlog.server.peers.dialing import AddressOf, Dial
from braidlog.server.peers.replica_fetcher import Fetcher
from braidlog.tasks import Tasks

PeerMessage = Fetch | Complaint | Answer | CorruptAnswer
Received = Callable[[int, Place, PeerMessage], None]
"""received(node, place, message): called on the event loop; it may call `send` directly."""


class ReplicaPeers:
    """`adapter` belongs behind a listener; `send` is the method that a `ReplicaPort` needs."""

    def __init__(
        self,
        node: int,
        runtime: Runtime,
        received: Received,
        address_of: AddressOf,
        *,
        tls: ssl.SSLContext | None = None,
        in_sync: InSync = lambda _, __: True,
        rate: ReplicationRate | None = None,
    ) -> None:
        self.node = node
        self.adapter = PeersAdapter(
            node,
            runtime,
            self._take,
            needs_certificate=tls is not None,
            in_sync=in_sync,
            rate=rate,
        )
        self._received = received
        self._address_of = address_of
        self._tls = tls
        self._tasks = Tasks()
        self._fetchers: dict[int, Fetcher] = {}
        self._is_stopped = False

    def send(self, node: int, place: Place, message: Fetch | Complaint | Answer) -> None:
        """Send a message to another node soon, without guaranteed delivery."""
        if self._is_stopped:
            return
        match message:
            case Fetch():
                self.fetcher(node).enqueue(place, message)
            case Complaint():
                self.fetcher(node).complain(place, message)
            case _:
                self.adapter.send(node, place, message)

    def fetcher(self, leader: int) -> Fetcher:
        found = self._fetchers.get(leader)
        if found is None:
            dial = Dial(self.node, leader, self._address_of, self._tls)
            found = self._fetchers[leader] = Fetcher(leader, dial, self._take, self._tasks)
        return found

    def _take(self, node: int, place: Place, message: PeerMessage) -> None:
        """Deliver a message. A closing connection may still bring messages, which are ignored after `stop`."""
        if not self._is_stopped:
            self._received(node, place, message)

    async def stop(self) -> None:
        """Stop sending and receiving."""
        self._is_stopped = True
        for each in self._fetchers.values():
            each.close()
        await self._tasks.stop()
