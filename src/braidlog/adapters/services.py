"""The services that the adapters of several dialects call; each dialect adds its own in its `services.py`."""

import msgspec

from braidlog.broker.access.authorize import Authorize
from braidlog.broker.coordinators import Coordinators
from braidlog.broker.forwarding import Forwarding
from braidlog.broker.routing import Routing
from braidlog.broker.topics import Topics
from braidlog.model.world import World
from braidlog.partition.append import Append
from braidlog.partition.fetch import Fetch
from braidlog.partition.hosting import Hosting


class CommonServices(msgspec.Struct, frozen=True):
    """Those of every dialect: who may do what, and which node does what."""

    world: World
    authorize: Authorize
    routing: Routing
    coordinators: Coordinators
    forwarding: Forwarding


class LogServices(CommonServices, frozen=True):
    """Those of a dialect with topics."""

    hosting: Hosting
    topics: Topics
    append: Append
    fetch: Fetch
