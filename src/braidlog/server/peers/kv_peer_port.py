"""Key service between nodes: wires together the serving and the calling side.

It shares the port with gossip, which hands over key connections (`port_demux.py`).
"""

import socket
from collections.abc import Callable, Coroutine
from typing import Any

from braidlog.adapters.peers.node_calls import CallTable
from braidlog.adapters.peers.node_port import MAYFLY, NodePortAdapter
from braidlog.broker.keys.kv_peer_service import KeyPeerService
from braidlog.broker.services import Services
from braidlog.server.net.listener import Listener
from braidlog.server.peers.certificates import PeerTls
from braidlog.server.peers.dialing import AddressOf
from braidlog.server.peers.kv_peer_client import KeyCalls


class KeyService:
    """Key service of one node. `sender` is its id in messages."""

    def __init__(
        self,
        sender: bytes,
        services: Services,
        calls: CallTable,
        address_of: AddressOf,
        tls: PeerTls | None,
        listen: Callable[[NodePortAdapter], Listener],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        exchange = KeyPeerService(sender, services.runtime, lambda: services.keyvalue.slots)
        self._comparing = exchange.comparing
        keys = None if tls is None else tls.keys
        self.questions = KeyCalls(
            services.hosting.number, services.runtime, address_of, exchange, services.routing, keys
        )
        adapter = NodePortAdapter(sender, services.routing, exchange, calls, needs_certificate=tls is not None)
        self.listener = listen(adapter)
        self._is_stopped = False
        self._spawn = spawn
        services.forwarding.ways[MAYFLY] = self.questions

    def adopt(self, connected: socket.socket) -> None:
        if self._is_stopped:
            connected.close()
        else:
            self._spawn(self.listener.adopt(connected), "keys of a node")

    async def compare(self) -> None:
        """Compare this node's slot replicas with their leaders; called every `COMPARE_SECONDS`."""
        await self._comparing.compare_all(self.questions.compare)

    async def stop(self) -> None:
        """Stop serving and calling."""
        self._is_stopped = True
        await self.listener.stop(0)
        await self.questions.stop()
