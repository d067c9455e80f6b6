"""Joins a node to its cluster, applies the metadata to it, and leaves in order.

Join: ports, registration, replicas, failure detection, controller. Leave: leaderships move to other nodes, the node
announces its departure, then it stops.
Invariants: the node acts on metadata only after its registration. A node whose number another process has registered
stops. A fenced node registers again, with a new incarnation.
"""

import asyncio
import contextlib
import logging
import socket
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from braidlog.adapters.contract import Adapter
from braidlog.adapters.kafka import console_relay
from braidlog.adapters.peers.node_calls import Serve, call_route, client_call, requests_of
from braidlog.adapters.routing import ForwardingAdapter
from braidlog.broker.keys.clustered_keys import ClusteredKeys
from braidlog.broker.keys.clustered_keys import KeyServiceContext as Keys
from braidlog.broker.keys.replica_comparison import COMPARE_SECONDS
from braidlog.broker.services import Services, tails_of
from braidlog.cluster.controller_runner import NodeController
from braidlog.cluster.membership import Membership, name_of
from braidlog.cluster.metadata import proposals
from braidlog.cluster.registration import NodeDescription, Registrar, StartFile
from braidlog.model.address import Address
from braidlog.model.errors import BrokerError
from braidlog.model.reporting.node_report import EtcdReport
from braidlog.partition.hosted_log import Role
from braidlog.partition.leadership_transfer import LeadershipTransfer
from braidlog.partition.partition import Partition
from braidlog.replication.control.swim import Members
from braidlog.server import node_reporter
from braidlog.server.cluster_parts import GOSSIP, PEERS, ClusterParts
from braidlog.server.net.connection_limits import ConnectionLimits, SessionLimits
from braidlog.server.net.listener import SWEEP_SECONDS, Listener
from braidlog.server.net.session import Session
from braidlog.server.net.wire_log import incoming_of, session_of
from braidlog.server.peers.gossip_thread import GossipThread
from braidlog.server.peers.kv_peer_port import KeyService

log = logging.getLogger("braidlog.cluster")

DRAIN_SECONDS_MAX: Final = 10.0
NAMED_MAX: Final = 100
LEAD_SECONDS_MAX: Final = 5.0
"""How long a start waits for the leaderships that no other node can take."""
KNOWN_SECONDS_MAX: Final = 3.0
"""How long it then waits until all live nodes know it; a node that just died and is not fenced yet never responds."""
LOOK_SECONDS: Final = 0.02
ANSWER_SECONDS_MAX: Final = 1.0
"""How long a leaving node waits until the in-sync replicas have the records that its producers wait for."""
SHARE_SECONDS: Final = 2.0
"""Interval of the check whether internal topics have all replicas."""
PEER_CONNECTIONS_MAX: Final = 1_000


class ClusterNode:
    """Call `run`, then `join` once all partitions are open, and `leave` first when the node stops."""

    def __init__(self, parts: ClusterParts, services: Services) -> None:
        self._config, self._context, self._store, self._bound = parts.config, parts.context, parts.store, parts.bound
        self._tls, self._gossip_tls = parts.tls, parts.gossip_tls
        self._services, self._metadata = services, parts.metadata
        context = self._context
        self._folder, self._runtime, self._tasks = context.folder, context.runtime, context.tasks
        self._replaced = parts.replaced
        self._listener: Listener | None = None
        self._registrar: Registrar | None = None
        self._acted = -1
        self._is_leaving = False
        self.has_joined = False
        number = self.number = parts.number
        self.replicas, self.peers, self.calls = parts.replicas, parts.peers, parts.calls
        self._spawn = parts.spawn
        self.controller = NodeController(number, self._metadata, self._runtime, self._spawn)
        sender = bytes.fromhex(self._folder.identity.folder_id)
        self.keys = KeyService(
            sender,
            services,
            self.peers.adapter.calls,
            parts.address_of(GOSSIP),
            self._tls,
            partial(self._listen, session=session_of(context.wire_log)),
            self._spawn,
        )
        self.gossip = GossipThread(
            number,
            sender,
            context.clock,
            parts.address_of(GOSSIP),
            self.controller.on_verdict,
            tls=self._gossip_tls,
            keys=self.keys.adopt,
            incoming=incoming_of(context.wire_log),
            silence_ms=self._config.silence_ms,
        )
        keys = self._keys = self._join_key_service(services)
        self.replicas.listeners |= keys.listeners
        answers, client_answers = services.forwarding.answers, services.forwarding.client_answers
        self.peers.adapter.calls.rows |= {name: call_route(answer) for name, answer in answers.items()}
        self.peers.adapter.calls.rows |= {name: client_call(each) for name, each in client_answers.items()}

    def etcd_report(self) -> EtcdReport:
        return self._store.report()

    def warnings(self) -> dict[str, str]:
        """Return warnings for operators, by health check; clients are served nevertheless."""
        said = {
            "metadata": self._store.outage(),
            "etcd member": self._store.member_problem(),
            "clock": self.clock_trouble(),
            "kept tails": self._tails_left(),
        }
        return {name: words for name, words in said.items() if words}

    def _tails_left(self) -> str:
        left = self._keys.slots.left
        if not left:
            return ""
        return (
            f"{len(left)} files of writes that were cut from the logs of keys are too old to be taken by themselves: "
            f"{left[0].path}; `braid kv salvage` shows them"
        )

    def clock_trouble(self) -> str:
        """Return a warning if this node's clock differs from the cluster's, else an empty string."""
        return self.gossip.clock_trouble()

    def reload_certificates(self) -> None:
        """Reload the certificates for connections to other nodes and to etcd."""
        self._store.reload_certificate()
        if self._tls is None or self._gossip_tls is None:
            return
        self._tls.reload()
        if self._registrar is None:  # the gossip thread has not started
            self._gossip_tls.reload()
        else:
            self.gossip.reload_certificates()

    async def run(self, *, is_guarded: bool = False) -> None:
        """Follow the metadata.

        `is_guarded`: the settings restrict clients. Then, and where users or rules exist, warn of ports without credentials.
        """
        is_guarded = is_guarded or bool(self._services.users.names() or self._services.rules.added())
        for words in self._config.missing_credentials() if is_guarded else ():
            log.warning("open to this machine: %s", words)
        await self._store.run(self._services)

    def _join_key_service(self, services: Services) -> ClusteredKeys:
        node = bytes.fromhex(self._folder.identity.folder_id)
        around = Keys(
            node, services.routing, tails_of(self._folder), self._runtime, self._spawn, self.keys.questions.replicate
        )
        return services.keyvalue.join_cluster(around)

    def serve_calls(self, adapter: Adapter, privileged: Mapping[str, Adapter]) -> None:
        """Serve other nodes' forwarded requests in this dialect; `privileged`: adapters without rules, by principal."""
        if isinstance(adapter, ForwardingAdapter):
            rows = self.peers.adapter.calls.rows
            rows[adapter.dialect] = requests_of(adapter, privileged)
            rows.update({name: call_route(answer) for name, answer in adapter.calls.items()})

    def answer_consoles(self, requests: Serve, report: Callable[[bytes], Coroutine[Any, Any, bytes]]) -> None:
        """Serve requests of other nodes' consoles."""
        self.peers.adapter.calls.rows |= {console_relay.CALL: requests, node_reporter.CALL: call_route(report)}

    # -- joining -----------------------------------------------------------------------------------------------

    async def join(self, doors: dict[str, Address]) -> None:
        """Register and start replication with the addresses of this node's listeners, by dialect."""
        self._tasks.spawn(self._store.follow_metadata(self._services.reconciler), "metadata-follow")
        config = self._config.peers
        own = {name: (config.advertised, sockets[0].getsockname()[1]) for name, sockets in self._bound.items()}
        described = NodeDescription(
            number=self.number,
            name=self._services.hosting.node,
            folder_id=self._folder.identity.folder_id,
            boot_id=boot_id(),
            addresses=doors | own,
            rack=self._config.rack or socket.gethostname(),
        )
        file = StartFile(self._folder.disk, self._folder.path)
        self._registrar = Registrar(self._metadata, self._runtime, file, described, lambda: uuid.uuid4().hex)
        listener = self._listener = self._listen(self.peers.adapter)
        await listener.start(config.host, config.replica_port, self._bound.pop(PEERS))
        self._tasks.every(SWEEP_SECONDS, listener.sweep, "sweep-peers")
        self._tasks.every(SWEEP_SECONDS, self.keys.listener.sweep, "sweep-node-port")
        await self.gossip.start(config.host, config.gossip_port, self._bound.pop(GOSSIP))
        await self._register(self._registrar)
        self._metadata.listeners.append(self.apply_metadata)
        self._tasks.spawn(self.replicas.run(), "replicas")
        self._tasks.spawn(self.controller.run(), "controller")
        self._tasks.every(SHARE_SECONDS, self._services.replica_moves.complete, "share-topics")
        self._tasks.every(SHARE_SECONDS, self._keys.run_maintenance, "tend-slots")
        self._tasks.every(COMPARE_SECONDS, self.keys.compare, "compare-slots")
        leases = self._store.leases(self._members, self.gossip.handle, self.controller.on_lease_lost)
        self._tasks.spawn(leases.run(), "leases")
        await self._while(self._is_to_lead, LEAD_SECONDS_MAX)
        await self._while(self._unaware, KNOWN_SECONDS_MAX)
        if late := self._unaware():
            log.warning("node %d is ready; nodes %s may not know of it yet", self.number, ", ".join(map(str, late)))
        self.has_joined = True

    def _listen(self, adapter: Adapter, session: Callable[..., Session] = Session) -> Listener:
        return Listener(
            adapter,
            session_limits=SessionLimits(),
            connection_limits=ConnectionLimits(PEER_CONNECTIONS_MAX, PEER_CONNECTIONS_MAX),
            budget=self._context.budget,
            tls=self._tls.server if self._tls else None,
            session=session,
            fair_turns=self._context.fair_turns,
        )

    async def _while(self, is_so: Callable[[], object], seconds_max: float) -> None:
        """Wait while the condition holds, at most `seconds_max`."""
        until = self._runtime.monotonic() + seconds_max
        while is_so() and self._runtime.monotonic() < until:
            await self._runtime.wakeup().wait(LOOK_SECONDS)

    def _unaware(self) -> list[int]:
        """Return live nodes that do not know this one yet: they would refuse topics with a replica on it."""
        return self.gossip.unconfirmed_nodes(self._living())

    def _is_to_lead(self) -> bool:
        """Whether a partition waits for this node to lead it: its clients would have to retry."""
        waiting = (each for each in self.replicas.partitions if each.role is not Role.LEADER and not each.fault)
        return any(self._could_lead(each) for each in waiting)

    def _could_lead(self, partition: Partition) -> bool:
        topic = self._metadata.image.topics.get(partition.topic)
        known = None if topic is None else topic.assignments[partition.number]
        return known is not None and self.number in known.in_sync and known.leader in (None, self.number)

    def _members(self) -> Membership:
        return self._metadata.image.cluster

    async def _register(self, registrar: Registrar) -> None:
        damaged = [name_of(*each) for each in self.replicas.damaged()]
        incarnation = await registrar.register(damaged)
        log.info("node %d is registered as incarnation %d", self.number, incarnation)
        self.gossip.registered_as(incarnation)
        self.replicas.registered(incarnation)
        self._acted = -1
        self.apply_metadata()

    def apply_metadata(self) -> None:
        """Apply the current metadata: replicas, gossip members, connections; register again if fenced."""
        registrar = self._registrar
        if registrar is None or self._acted == self._metadata.seq:
            return
        self._acted = self._metadata.seq
        if registrar.is_replaced:
            self._replaced()
            return
        self.replicas.apply_metadata()
        self.gossip.handle(Members(self._living()))
        for each in (self.calls, self.keys.questions):
            each.disconnect_all_except(self._members().responding_nodes())
        self.controller.on_metadata_change()
        if registrar.is_fenced and not self._is_leaving and self.replicas.incarnation is not None:
            log.warning("others took node %d for dead; it registers again", self.number)
            # Reset it now: the new registration arrives in the metadata before `register` returns.
            self.replicas.incarnation = None
            self._tasks.spawn(self._register(registrar), "register")

    def _living(self) -> tuple[tuple[int, int], ...]:
        nodes = sorted(self._metadata.image.cluster.nodes().items())
        return tuple((number, node.incarnation) for number, node in nodes if not node.is_fenced)

    # -- leaving -----------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Move leaderships to other nodes within a time limit, then announce the departure."""
        self._store.leave_member()
        if self._listener is None or self._registrar is None or self._registrar.incarnation is None or self._is_leaving:
            return
        self._is_leaving = True
        led = LeadershipTransfer(self.replicas.partitions)
        until = self._runtime.monotonic() + DRAIN_SECONDS_MAX
        await self._answer_producers(led)
        with contextlib.suppress(BrokerError, TimeoutError):  # without etcd nothing moves
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                await proposals.drain(self._metadata, self.number)
        while (left := self._movable(led)) and self._runtime.monotonic() < until:
            await self._runtime.wakeup().wait(LOOK_SECONDS)
        led.release()
        if left:
            log.warning("%d partitions are not served by others yet: %s", len(left), ", ".join(left[:NAMED_MAX]))
        self.gossip.leave()

    async def _answer_producers(self, led: LeadershipTransfer) -> None:
        """Answer producers of movable partitions: after the transfer, the outcome of their writes would be unknown."""
        led.hold(self._movable(led))
        until = self._runtime.monotonic() + ANSWER_SECONDS_MAX
        while led.is_awaited and self._runtime.monotonic() < until:
            await self._runtime.wakeup().wait(LOOK_SECONDS)

    def _movable(self, led: LeadershipTransfer) -> Sequence[str]:
        """Return partitions that this node led, that no node serves yet, and that a live in-sync node could lead."""
        image = self._metadata.image
        nodes = image.cluster.nodes()
        others = {number for number, node in nodes.items() if node.may_lead and number != self.number}
        left = [(each.topic, each.number) for each in led.left() if each.topic in image.topics]
        return [name_of(*key) for key in left if others & {*image.assignment(*key).in_sync}]

    async def disconnect(self) -> None:
        """Close all connections with other nodes."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await self.peers.stop()
            await listener.stop(0)
            await self.gossip.stop()
            await self.keys.stop()
            await self.calls.stop()

    async def stopped_cleanly(self) -> None:
        """Record a clean shutdown; call it when everything is closed and synced."""
        if self._registrar is not None:
            await self._registrar.stopped_cleanly()


def boot_id() -> str:
    """Return the id of the machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
