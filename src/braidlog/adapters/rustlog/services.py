"""The services that RustLog's handlers call."""

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


class Services(msgspec.Struct, frozen=True):
    world: World
    hosting: Hosting
    topics: Topics
    append: Append
    fetch: Fetch
    routing: Routing
    coordinators: Coordinators
    forwarding: Forwarding
    authorize: Authorize
