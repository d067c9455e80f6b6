"""Creates the adapters of all dialects, the private listeners of the node's console, and the access gate of both."""

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from braidlog.adapters.contract import Adapter
from braidlog.adapters.kafka.console_relay import CALL, RelayAdapter
from braidlog.adapters.peers.node_calls import Serve, requests_of
from braidlog.broker.routing import Broker, Routing
from braidlog.broker.services import Services
from braidlog.model.actor import listener_token
from braidlog.model.address import Address
from braidlog.model.runtime.runtime import Runtime
from braidlog.security.authentication import Authenticate, Pauses
from braidlog.security.authorization import CONSOLE, Authorize, OnBehalf, Operation, Rule
from braidlog.server.config import AuthConfig
from braidlog.server.net.connection_limits import ConnectionLimits, SessionLimits
from braidlog.server.net.listener import Listener
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.ports import listen
from braidlog.server.net.scheduler import FairScheduler
from braidlog.server.net.unauthenticated_limits import AccessGate
from braidlog.tasks import Tasks
from braidlog.wire.dialect import dialects

STRANGERS_SHARE: Final = 4


def gatekeeper(auth: AuthConfig, authorize: Authorize, runtime: Runtime, *, connections_max: int) -> AccessGate:
    """Return the access gate with the configured limits; unauthenticated connections get at most a quarter of all."""
    pauses = Pauses(auth.failure_delay_seconds, auth.failure_delay_seconds_max, auth.failure_memory_seconds)
    strangers_max = min(auth.unauthenticated.connections_max, max(connections_max // STRANGERS_SHARE, 1))
    limits = msgspec.structs.replace(auth.unauthenticated, connections_max=strangers_max)
    return AccessGate(Authenticate(authorize, runtime, pauses), limits)


LOOPBACK: Final = "127.0.0.1"
CONSOLE_CONNECTIONS_MAX: Final = 1024
"""Connections of the console to all nodes, for all signed-in users."""
CONSOLE_DIALECTS: Final = ("mayfly",)
"""Dialects in which a node forwards requests of its console to other nodes."""


def adapter_class(dialect: str) -> type[Any]:
    """Return the dialect's class in `adapters/<dialect>/handlers.py`; its `uses` names the services it needs."""
    found: type[Any] = dialects()[dialect].part(f"braidlog.adapters.{dialect}.handlers", "Adapter")
    return found


def make_adapter(dialect: str, services: Services, **options: Any) -> Adapter:  # noqa: ANN401 - as the dialect declares them
    kind = adapter_class(dialect)
    made: Adapter = kind(services.only(kind.uses), **options)
    return made


def make_adapters(services: Services, listeners: Any) -> dict[str, Adapter]:  # noqa: ANN401 - a field for each dialect
    """Create the adapters of all dialects with the options of their listeners."""
    made = {}
    for name, dialect in dialects().items():
        options = {each.name: getattr(getattr(listeners, name), each.name) for each in dialect.listener_options}
        made[name] = make_adapter(name, services, **options)
    return made


def of_consoles(dialect: str, services: Services) -> dict[str, Adapter]:
    """Return the adapters that serve other nodes' consoles; the rules for clients do not apply to them."""
    if dialect not in CONSOLE_DIALECTS:
        return {}
    allowed = Authorize({}, [Rule(CONSOLE, [Operation.ALL])])
    return {CONSOLE: make_adapter(dialect, msgspec.structs.replace(services, authorize=allowed))}


def console_calls(services: Services) -> Serve:
    """Return the handler of other consoles' Kafka requests; it authorizes the principal that signed in there."""
    allowed = OnBehalf(services.authorize, secrets.token_hex(32))
    return requests_of(make_adapter("kafka", msgspec.structs.replace(services, authorize=allowed), auto_create=False))


class ConsoleRouting(Routing):
    """Gives the console an address per node, each a listener of this node, which is also the controller."""

    def __init__(self, services: Services, port_of: Callable[[int], int]) -> None:
        super().__init__(services.metadata, services.hosting.node)
        self._port_of = port_of

    @property
    def controller(self) -> int:
        return self.own_number

    def brokers(self, door: str, own: Address) -> list[Broker]:
        members = self._members
        if not members or door != "kafka":
            return [Broker(self.own_number, *own)]
        return [
            Broker(number, LOOPBACK, self._port_of(number), each.rack, each.is_fenced, each.is_draining)
            for number, each in sorted(members.items())
        ]

    def address(self, number: int, door: str, own: Address | None = None) -> Address | None:  # noqa: ARG002 - a relay's too
        if door != "kafka" or not (number == self.own_number or self.is_live(number)):
            return None
        return (LOOPBACK, self._port_of(number))


class ConsoleListeners:
    """Private listeners of the console, on loopback; they accept only a token derived from the node's secret.

    The console reaches them even if a public port is closed or needs certificates or users; no other client does. The
    console may do everything; on behalf of a user, what that user may do. Over Kafka each node of the cluster has a
    listener here, which relays to that node.
    """

    def __init__(
        self,
        services: Services,
        auth: AuthConfig,
        secret: str,
        tasks: Tasks,
        *,
        budget: Budget,
        fair_turns: FairScheduler,
    ) -> None:
        self._secret = secret
        services.forwarding.names.add(CALL)
        self._tasks = tasks
        self._own = services.routing.own_number
        allowed, routing = OnBehalf(services.authorize, secret), ConsoleRouting(services, self._port_of)
        self._services = msgspec.structs.replace(services, authorize=allowed, routing=routing)
        self._make = partial(
            Listener,
            session_limits=SessionLimits(),
            connection_limits=ConnectionLimits(CONSOLE_CONNECTIONS_MAX, CONSOLE_CONNECTIONS_MAX),
            budget=budget,
            gatekeeper=gatekeeper(auth, allowed, services.runtime, connections_max=CONSOLE_CONNECTIONS_MAX),
            fair_turns=fair_turns,
        )
        self._listeners: list[Listener] = []
        self._ports: dict[int, int] = {}

    async def open(self) -> dict[str, str]:
        """Open the listeners for this node; return their URLs by dialect."""
        urls = {}
        for dialect, options in (("kafka", {"auto_create": False}), ("mayfly", {})):
            listener = self._make(make_adapter(dialect, self._services, **options))
            self._listeners.append(listener)
            await listener.start(LOOPBACK, 0)
            urls[dialect] = f"{dialect}://{CONSOLE}:{listener_token(self._secret, CONSOLE)}@{LOOPBACK}:{listener.port}"
        self._ports[self._own] = self._listeners[0].port
        return urls

    def _port_of(self, node: int) -> int:
        """Return the port of a node's listener; its clients wait in the kernel's backlog until it accepts."""
        if node not in self._ports:
            bound = listen(LOOPBACK, 0, "the console's listener")
            self._ports[node] = bound[0].getsockname()[1]
            adapter = RelayAdapter(self._services.only(RelayAdapter.uses), node)
            listener = self._make(adapter)
            self._listeners.append(listener)
            self._tasks.spawn(listener.start(LOOPBACK, 0, bound), f"listen for node {node}")
        return self._ports[node]

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.stop(0)
