"""The services that Flux's handlers call."""

from braidlog.adapters.services import LogServices
from braidlog.broker.brokers import Brokers
from braidlog.broker.placement import Placement
from braidlog.broker.replica_moves import ReplicaMoves
from braidlog.cluster.store import Metadata


class Services(LogServices, frozen=True):
    placement: Placement
    brokers: Brokers
    replica_moves: ReplicaMoves
    metadata: Metadata
