"""The services that Flux's handlers call."""

import msgspec

from braidlog.broker.access.authorize import Authorize
from braidlog.broker.brokers import Brokers
from braidlog.broker.coordinators import Coordinators
from braidlog.broker.forwarding import Forwarding
from braidlog.broker.placement import Placement
from braidlog.broker.replica_moves import ReplicaMoves
from braidlog.broker.routing import Routing
from braidlog.broker.topics import Topics
from braidlog.cluster.store import Metadata
from braidlog.model.world import World
from braidlog.partition.append import Append
from braidlog.partition.fetch import Fetch
from braidlog.partition.hosting import Hosting


class Services(msgspec.Struct, frozen=True):
    world: World
    hosting: Hosting
    topics: Topics
    placement: Placement
    brokers: Brokers
    routing: Routing
    coordinators: Coordinators
    replica_moves: ReplicaMoves
    forwarding: Forwarding
    append: Append
    fetch: Fetch
    authorize: Authorize
    metadata: Metadata
