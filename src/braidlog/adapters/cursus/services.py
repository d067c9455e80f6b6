"""The services that Cursus's handlers call."""

from braidlog.adapters.services import LogServices
from braidlog.broker.coordination.producer_names import ProducerNames
from braidlog.broker.coordination.transaction_checks import TransactionChecks
from braidlog.broker.replica_moves import ReplicaMoves
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.coordinator.event_streams import EventStreams


class Services(LogServices, frozen=True):
    replica_moves: ReplicaMoves
    metadata: Metadata
    streams: EventStreams
    producer_names: ProducerNames
    transaction_checks: TransactionChecks
