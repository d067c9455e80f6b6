"""Adapters as their dialects declare them, and the doors that a node opens for its own console.

Knows: which services an adapter is made with. Refuses to know: which doors the configuration opens.
"""

from typing import Any, Final

import msgspec

from braidlog.adapters.contract import Adapter
from braidlog.broker.access.authorize import CONSOLE, Authorize, Operation, Rule
from braidlog.broker.access.on_behalf import OnBehalf
from braidlog.broker.services import Services
from braidlog.model.door_tokens import door_token
from braidlog.server.budget import Budget
from braidlog.server.config import AuthConfig
from braidlog.server.connection_limits import ConnectionLimits
from braidlog.server.fair_turns import FairTurns
from braidlog.server.guards import gatekeeper
from braidlog.server.listener import Listener
from braidlog.server.session_limits import SessionLimits
from braidlog.wire.dialect import dialects

CONSOLE_CONNECTIONS_MAX: Final = 256
CONSOLE_DIALECTS: Final = ("mayfly",)
"""Those in which a node hands on what its console asks."""


def adapter_class(dialect: str) -> type[Any]:
    """Found by its name in `adapters/<dialect>/handlers.py`; its `uses` is what it is made with."""
    found: type[Any] = dialects()[dialect].part(f"braidlog.adapters.{dialect}.handlers", "Adapter")
    return found


def make_adapter(dialect: str, services: Services, **options: Any) -> Adapter:  # noqa: ANN401 - as the dialect declares them
    kind = adapter_class(dialect)
    made: Adapter = kind(services.only(kind.uses), **options)
    return made


def make_adapters(services: Services, listeners: Any) -> dict[str, Adapter]:  # noqa: ANN401 - a field for each dialect
    """Of all dialects, as their listeners are configured."""
    made = {}
    for name, dialect in dialects().items():
        options = {each.name: getattr(getattr(listeners, name), each.name) for each in dialect.listener_options}
        made[name] = make_adapter(name, services, **options)
    return made


def of_consoles(dialect: str, services: Services) -> dict[str, Adapter]:
    """What serves the consoles of other nodes, as their own nodes do: whatever the rules are for clients."""
    if dialect not in CONSOLE_DIALECTS:
        return {}
    allowed = Authorize({}, [Rule(CONSOLE, [Operation.ALL])])
    return {CONSOLE: make_adapter(dialect, msgspec.structs.replace(services, authorize=allowed))}


async def open_private_doors(
    services: Services, auth: AuthConfig, secret: str, *, budget: Budget, fair_turns: FairTurns
) -> tuple[list[Listener], dict[str, str]]:
    """Doors for the console alone, on loopback: whatever the others ask for, these ask for a token made with the secret.

    So it gets in when a port is closed, wants certificates or knows none but configured users; and nobody else does. For itself
    it may do everything, for others what they may.
    """
    token = door_token(secret, CONSOLE)
    allowed = OnBehalf(services.authorize, secret)
    services = msgspec.structs.replace(services, authorize=allowed)
    keeper = gatekeeper(auth, allowed, services.world, connections_max=CONSOLE_CONNECTIONS_MAX)
    connection_limits = ConnectionLimits(CONSOLE_CONNECTIONS_MAX, CONSOLE_CONNECTIONS_MAX)
    made: list[Adapter] = [
        make_adapter("kafka", services, auto_create=False),
        make_adapter("mayfly", services),
    ]
    doors, urls = [], {}
    for adapter in made:
        door = Listener(
            adapter,
            session_limits=SessionLimits(),
            connection_limits=connection_limits,
            budget=budget,
            gatekeeper=keeper,
            fair_turns=fair_turns,
        )
        await door.start("127.0.0.1", 0)
        doors.append(door)
        urls[adapter.dialect] = f"{adapter.dialect}://{CONSOLE}:{token}@127.0.0.1:{door.port}"
    return doors, urls
