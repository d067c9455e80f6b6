"""The services that Kafka's handlers call."""

import msgspec

from braidlog.broker.access.authorize import Authorize
from braidlog.broker.access.rules import Rules
from braidlog.broker.access.users import Users
from braidlog.broker.brokers import Brokers
from braidlog.broker.configs import Configs
from braidlog.broker.coordinators import Coordinators
from braidlog.broker.cuts import Cuts
from braidlog.broker.group_settings import GroupSettings
from braidlog.broker.node_info import Describe
from braidlog.broker.quota_changes import QuotaChanges
from braidlog.broker.replica_moves import ReplicaMoves
from braidlog.broker.replication_rate import ReplicationRate
from braidlog.broker.routing import Routing
from braidlog.broker.topics import Topics
from braidlog.cluster.store import Metadata
from braidlog.coordinator.producer_ids import ProducerIds
from braidlog.model.world import World
from braidlog.partition.append import Append, Intake
from braidlog.partition.fetch import Fetch
from braidlog.partition.hosting import Hosting
from braidlog.partition.trim import Trim


class Services(msgspec.Struct, frozen=True):
    world: World
    hosting: Hosting
    topics: Topics
    configs: Configs
    trim: Trim
    brokers: Brokers
    routing: Routing
    coordinators: Coordinators
    replica_moves: ReplicaMoves
    replication_rate: ReplicationRate
    metadata: Metadata
    append: Append
    intake: Intake
    fetch: Fetch
    producer_ids: ProducerIds
    authorize: Authorize
    rules: Rules
    users: Users
    group_settings: GroupSettings
    quota_changes: QuotaChanges
    cuts: Cuts
    describe: Describe
