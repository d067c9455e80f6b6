"""The parts of a cluster's node that exist before its services: metadata, replicas, connections to other nodes.

`cluster_node.py` joins and leaves the cluster with them.
"""

import itertools
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

from braidlog.broker.forwarding import Forwarding
from braidlog.broker.partition_reports import ReplicationRate
from braidlog.broker.routing import Routing
from braidlog.broker.services import NodeParts
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.address import Address
from braidlog.model.clock import Clock
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import own_number
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.partition_context import Key
from braidlog.partition.replica_manager import Received, ReplicaManager
from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.etcd.etcd_metadata import ClusterStore, open_cluster
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.ports import close_all, listen
from braidlog.server.net.scheduler import FairScheduler
from braidlog.server.peers.certificates import PeerTls
from braidlog.server.peers.dialing import close_when_silent
from braidlog.server.peers.node_calls import NodeCalls
from braidlog.server.peers.replica_fetch import ReplicaPeers
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.tasks import Tasks
from braidlog.tools.wire.capture.recorder import Recorder

GOSSIP: Final = "gossip"
PEERS: Final = "peers"


class NodeContext(NamedTuple):
    """Parts of the node that its cluster parts use."""

    folder: DataFolder
    runtime: Runtime
    clock: Clock
    tasks: Tasks
    budget: Budget
    fair_turns: FairScheduler
    failed: Callable[[BaseException], None]
    """Stops the node."""
    wire_log: Recorder | None = None


async def open_cluster_parts(config: ClusterConfig, node: str, context: NodeContext) -> "ClusterParts | None":
    """Bind the ports for other nodes, then open the metadata. Returns None for a single node without etcd."""
    peers, tls = config.peers, config.peers.tls()
    bound: dict[str, list[socket.socket]] = {}
    async with AsyncExitStack() as opened:
        opened.callback(close_all, bound)
        if config.etcd:
            bound[GOSSIP] = listen(peers.host, peers.gossip_port, "cluster.peers.gossip_port")
            bound[PEERS] = listen(peers.host, peers.replica_port, "cluster.peers.replica_port")
        store = await open_cluster(config, context.folder, context.runtime, node, context.tasks)
        if store is None:
            return None
        opened.push_async_callback(store.stop)
        parts = ClusterParts(config, node, context, store, bound, tls)
        opened.pop_all()
        return parts


class ClusterParts:
    """Created before any service; `stop` it last."""

    def __init__(
        self,
        config: ClusterConfig,
        node: str,
        context: NodeContext,
        store: ClusterStore,
        bound: dict[str, list[socket.socket]],
        tls: PeerTls | None,
    ) -> None:
        self.config = config
        self.context = context
        self.store = store
        self.bound = bound
        for each in itertools.chain.from_iterable(bound.values()):
            close_when_silent(each)
        self.tls, self.gossip_tls = tls, config.peers.tls()
        """Contexts of the loop's thread and of the gossip thread."""
        runtime, self.number = context.runtime, own_number(node)
        self.metadata = Metadata(store.store, runtime)
        self.replication_rate = ReplicationRate(config.peers.replication_bytes_per_second)
        self.replicas = ReplicaManager(
            node, self.metadata, context.folder, runtime, self.spawn, self.replaced, self._connect
        )
        self.peers = self.replicas.transport
        self.calls = NodeCalls(self.number, runtime, self.address_of(PEERS), self._client_tls)
        routing = Routing(self.metadata, node)
        forwarding = Forwarding(routing, runtime, self.calls, self.spawn)
        self.for_services = NodeParts(
            self.metadata,
            self.replicas.hosting,
            routing,
            forwarding,
            self.replication_rate,
            self.spawn,
            store.remove_member,
        )

    @property
    def _client_tls(self) -> ssl.SSLContext | None:
        return self.tls.client if self.tls else None

    def _connect(self, received: Received) -> ReplicaPeers:
        return ReplicaPeers(
            self.number,
            self.context.runtime,
            received,
            self.address_of(PEERS),
            tls=self._client_tls,
            in_sync=self._is_in_sync,
            rate=self.replication_rate,
        )

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object:
        return self.context.tasks.spawn(work, name)

    def address_of(self, listener: str) -> Callable[[int], Address | None]:
        """Return a function from a node's number to the address of its listener."""

        def find(node: int) -> Address | None:
            member = self.metadata.image.cluster.member(node)
            return None if member is None else member.addresses.get(listener)

        return find

    def _is_in_sync(self, node: int, place: Key) -> bool:
        name = self.replicas.hosting.name_of(place[0].hex())
        topic = None if name is None else self.metadata.image.topics.get(name)
        return topic is not None and place[1] < topic.partitions and node in topic.assignments[place[1]].in_sync

    def replaced(self) -> None:
        """Stop the node: another process has registered its number."""
        text = f"node {self.number} was started by another process, which has registered since; this one stops"
        self.context.failed(BrokerError(Reason.VERSION_CONFLICT, text))

    async def stop(self) -> None:
        """Close the ports that no listener uses, and the metadata."""
        close_all(self.bound)
        await self.store.stop()
