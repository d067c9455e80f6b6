"""Who looks at tokens for a node's ports, as its settings say.

Knows: the settings of signing in. Refuses to know: tokens, and who may do what.
"""

from typing import Final

import msgspec

from braidlog.broker.access.authenticate import Authenticate, Pauses
from braidlog.broker.access.authorize import Authorize
from braidlog.model.world import World
from braidlog.server.config import AuthConfig
from braidlog.server.gatekeeper import Gatekeeper

STRANGERS_SHARE: Final = 4


def gatekeeper(auth: AuthConfig, authorize: Authorize, world: World, *, connections_max: int) -> Gatekeeper:
    """Who looks at tokens, with the pauses and limits that the settings say. Most of all connections are for who is known."""
    pauses = Pauses(auth.pause_seconds, auth.pause_seconds_max, auth.forget_seconds)
    strangers_max = min(auth.strangers.connections_max, max(connections_max // STRANGERS_SHARE, 1))
    limits = msgspec.structs.replace(auth.strangers, connections_max=strangers_max)
    return Gatekeeper(Authenticate(authorize, world, pauses), limits)
