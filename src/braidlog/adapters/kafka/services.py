"""The services that Kafka's handlers call."""

from braidlog.adapters.services import LogServices
from braidlog.broker.backup import Snapshots
from braidlog.broker.brokers import Brokers
from braidlog.broker.cluster_report import Describe
from braidlog.broker.coordination.group_settings import GroupSettings
from braidlog.broker.partition_reports import ReplicationRate
from braidlog.broker.replica_moves import ReplicaMoves
from braidlog.broker.topic_settings import Configs
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.coordinator.transactions.producer_ids import ProducerIds
from braidlog.partition.maintenance.delete_records import Trim
from braidlog.partition.produce.append import DecompressionCheck
from braidlog.security.quota_changes import QuotaChanges
from braidlog.security.rule_changes import Rules
from braidlog.security.users import Users


class Services(LogServices, frozen=True):
    configs: Configs
    trim: Trim
    brokers: Brokers
    replica_moves: ReplicaMoves
    replication_rate: ReplicationRate
    metadata: Metadata
    intake: DecompressionCheck
    producer_ids: ProducerIds
    rules: Rules
    users: Users
    group_settings: GroupSettings
    quota_changes: QuotaChanges
    cuts: Snapshots
    describe: Describe
