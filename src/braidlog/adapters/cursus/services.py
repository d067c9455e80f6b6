"""The services that Cursus's handlers call."""

from braidlog.adapters.services import LogServices
from braidlog.broker.producer_names import ProducerNames
from braidlog.broker.replica_moves import ReplicaMoves
from braidlog.broker.transaction_checks import TransactionChecks
from braidlog.cluster.store import Metadata
from braidlog.coordinator.streams import EventStreams


class Services(LogServices, frozen=True):
    replica_moves: ReplicaMoves
    metadata: Metadata
    streams: EventStreams
    producer_names: ProducerNames
    transaction_checks: TransactionChecks
