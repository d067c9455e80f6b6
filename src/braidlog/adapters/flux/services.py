"""The services that Flux's handlers call."""

from braidlog.adapters.services import LogServices
from braidlog.broker.brokers import Brokers
from braidlog.broker.replica_moves import ReplicaMoves
from braidlog.broker.topic_placement import Placement
from braidlog.cluster.metadata.metadata_store import Metadata


class Services(LogServices, frozen=True):
    placement: Placement
    brokers: Brokers
    replica_moves: ReplicaMoves
    metadata: Metadata
