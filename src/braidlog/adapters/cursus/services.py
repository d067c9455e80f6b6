"""The services that Cursus's handlers call."""

import msgspec

from braidlog.broker.access.authorize import Authorize
from braidlog.broker.coordinators import Coordinators
from braidlog.broker.forwarding import Forwarding
from braidlog.broker.producer_names import ProducerNames
from braidlog.broker.replica_moves import ReplicaMoves
from braidlog.broker.routing import Routing
from braidlog.broker.topics import Topics
from braidlog.broker.transaction_checks import TransactionChecks
from braidlog.cluster.store import Metadata
from braidlog.coordinator.streams import EventStreams
from braidlog.model.world import World
from braidlog.partition.append import Append
from braidlog.partition.fetch import Fetch
from braidlog.partition.hosting import Hosting


class Services(msgspec.Struct, frozen=True):
    world: World
    hosting: Hosting
    topics: Topics
    routing: Routing
    coordinators: Coordinators
    forwarding: Forwarding
    replica_moves: ReplicaMoves
    metadata: Metadata
    append: Append
    fetch: Fetch
    streams: EventStreams
    producer_names: ProducerNames
    transaction_checks: TransactionChecks
    authorize: Authorize
