"""The services that Kafka's handlers call."""

from braidlog.adapters.services import LogServices
from braidlog.broker.access.rules import Rules
from braidlog.broker.access.users import Users
from braidlog.broker.brokers import Brokers
from braidlog.broker.configs import Configs
from braidlog.broker.cuts import Cuts
from braidlog.broker.group_settings import GroupSettings
from braidlog.broker.node_info import Describe
from braidlog.broker.quota_changes import QuotaChanges
from braidlog.broker.replica_moves import ReplicaMoves
from braidlog.broker.replication_rate import ReplicationRate
from braidlog.cluster.store import Metadata
from braidlog.coordinator.producer_ids import ProducerIds
from braidlog.partition.append import Intake
from braidlog.partition.trim import Trim


class Services(LogServices, frozen=True):
    configs: Configs
    trim: Trim
    brokers: Brokers
    replica_moves: ReplicaMoves
    replication_rate: ReplicationRate
    metadata: Metadata
    intake: Intake
    producer_ids: ProducerIds
    rules: Rules
    users: Users
    group_settings: GroupSettings
    quota_changes: QuotaChanges
    cuts: Cuts
    describe: Describe
