"""Opens all services of one node and connects them.

Does not handle: sockets, wire protocols.

The metadata opens first, then the data folder that follows it, then the services that depend on both.
Coordinators start as the partitions of their shards are opened.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from braidlog.broker.backup import KEY_VALUE_FOLDER, Snapshots
from braidlog.broker.brokers import Brokers
from braidlog.broker.cluster_report import Describe, no_description
from braidlog.broker.coordination.coordinator import CoordinatorFactory, Members, TransactionDeps
from braidlog.broker.coordination.coordinators import Coordinators
from braidlog.broker.coordination.group_settings import GroupSettings
from braidlog.broker.coordination.marker_routing import RoutedMarkers
from braidlog.broker.coordination.producer_names import ProducerNames
from braidlog.broker.coordination.stream_snapshots import StreamSnapshots
from braidlog.broker.coordination.transaction_checks import TransactionChecks
from braidlog.broker.forwarding import Forwarding
from braidlog.broker.keys.key_counts import KeyCounts
from braidlog.broker.keys.key_service import KeyValue
from braidlog.broker.partition_reports import ReplicationRate
from braidlog.broker.replica_moves import Removed, ReplicaMoves
from braidlog.broker.routing import Routing
from braidlog.broker.schemas.schema_log import SchemaLog, SchemaReader
from braidlog.broker.schemas.schema_view import SchemaIds
from braidlog.broker.topic_leaders import TopicLeaders
from braidlog.broker.topic_placement import Placement
from braidlog.broker.topic_settings import Configs
from braidlog.broker.topics import Topics
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.coordinator.consumer_groups.service import ConsumerGroupSettings
from braidlog.coordinator.event_streams import EventStreams
from braidlog.coordinator.groups.classic_group import INITIAL_DELAY_MS
from braidlog.coordinator.groups.member_metadata import MemberMetadata
from braidlog.coordinator.shards import STATE_TOPIC, Spawn
from braidlog.coordinator.state_limits import StateUsage
from braidlog.coordinator.transactions.markers import LocalMarkers
from braidlog.coordinator.transactions.producer_ids import ProducerIds
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.feed.feed_records import Watcher
from braidlog.kv.replicated.slots import LOG_TOPIC
from braidlog.kv.wal.local_store import LocalStore
from braidlog.model.runtime.runtime import Runtime
from braidlog.model.settings import TopicSettings
from braidlog.partition.fetch.fetch import Fetch
from braidlog.partition.internal.internal_topic import open_metadata
from braidlog.partition.key_log import TailFolder, keep_uncommitted
from braidlog.partition.maintenance.delete_records import Trim
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.partition.produce.append import Append, DecompressionCheck, DecompressionLimits, ProducerLimit
from braidlog.partition.produce.schema_check import SchemaCheck
from braidlog.partition.reconciler import Reconciler
from braidlog.security.authorization import Authorize, Operation
from braidlog.security.quota_changes import QuotaChanges
from braidlog.security.quotas import Quotas
from braidlog.security.rule_changes import Rules
from braidlog.security.users import Users
from braidlog.storage.files import join
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.worker.inline_worker import Here
from braidlog.worker.jobs import Worker

T = TypeVar("T", bound=msgspec.Struct)
TAIL_FOLDER = "kv-tails"


class Services(msgspec.Struct, frozen=True):
    """All services of a node. Each adapter gets those that it uses."""

    runtime: Runtime
    hosting: PartitionRegistry
    topics: Topics
    topic_leaders: TopicLeaders
    placement: Placement
    configs: Configs
    trim: Trim
    brokers: Brokers
    routing: Routing
    forwarding: Forwarding
    replica_moves: ReplicaMoves
    replication_rate: ReplicationRate
    append: Append
    intake: DecompressionCheck
    fetch: Fetch
    coordinators: Coordinators
    streams: EventStreams
    stream_snapshots: StreamSnapshots
    producer_ids: ProducerIds
    producer_names: ProducerNames
    transaction_checks: TransactionChecks
    markers: RoutedMarkers
    authorize: Authorize
    rules: Rules
    users: Users
    keyvalue: KeyValue
    key_counts: KeyCounts
    metadata: Metadata
    reconciler: Reconciler
    holdings: StateUsage
    group_settings: GroupSettings
    quota_changes: QuotaChanges
    cuts: Snapshots
    schema_log: SchemaLog
    describe: Describe

    def only(self, kind: type[T]) -> T:
        """Return the services that a struct names, each under its name here."""
        return kind(**{name: getattr(self, name) for name in kind.__struct_fields__})

    def close(self) -> None:
        """Sync and close every file."""
        for each in (self.keyvalue, self.hosting, self.metadata):
            each.close()


class NodeParts(NamedTuple):
    """Dependencies of the services: the node's metadata and partitions, and its connections to other nodes."""

    metadata: Metadata
    hosting: PartitionRegistry
    routing: Routing
    forwarding: Forwarding
    replication_rate: ReplicationRate
    spawn: Spawn
    member_removed: Removed | None = None


def lone_node(folder: DataFolder, runtime: Runtime, node: str, spawn: Spawn) -> NodeParts:
    """Return the parts of a node without a cluster; its data folder holds its metadata."""
    metadata = Metadata(open_metadata(folder, runtime, node=node), runtime)
    routing = Routing(metadata, node)
    hosting, forwarding = PartitionRegistry(folder, node, runtime), Forwarding(routing, runtime)
    return NodeParts(metadata, hosting, routing, forwarding, ReplicationRate(), spawn)


def open_services(  # noqa: PLR0913 - the parameters of a whole node
    folder: DataFolder,
    runtime: Runtime,
    parts: NodeParts,
    *,
    defaults: TopicSettings,
    authorize: Authorize,
    users: Mapping[str, str] | None = None,
    rebalance_delay_ms: int = INITIAL_DELAY_MS,
    kv: KeyValueSettings | None = None,
    resident: Callable[[], int] = lambda: 0,
    member_metadata: MemberMetadata | None = None,
    consumer_groups: ConsumerGroupSettings | None = None,
    worker: Worker | None = None,
    decompression: DecompressionLimits | None = None,
    holdings: StateUsage | None = None,
    quotas: Quotas | None = None,
    describe: Describe = no_description,
    stop_node: Callable[[], None] | None = None,
) -> Services:
    """Open every service over a data folder, except for the key-value store, which the server opens.

    `users`: name → verifier (`users.py`), from the configuration. `stop_node`: stops a node of a cluster.
    """
    metadata, hosting, routing, forwarding, replication_rate, spawn, member_removed = parts
    tails = tails_of(folder)
    before_release = {LOG_TOPIC: lambda number, log: keep_uncommitted(log, number, tails)}
    reconciler = Reconciler(metadata, folder, hosting, runtime, before_release)
    worker = worker or Here()
    kv_settings = kv or KeyValueSettings()
    holdings = holdings or StateUsage()
    producer_ids = ProducerIds(metadata, runtime)
    topic_leaders = TopicLeaders(metadata, hosting, forwarding, runtime)
    topics = Topics(reconciler, hosting, runtime, defaults, holdings, topic_leaders)
    coordinators = Coordinators(routing, topics, runtime, spawn)
    transaction_checks = TransactionChecks(coordinators, forwarding)
    local_markers = LocalMarkers(hosting, runtime, coordinators.end_commits)
    markers = RoutedMarkers(local_markers, routing, forwarding, runtime)
    group_settings = GroupSettings(metadata, consumer_groups or ConsumerGroupSettings())
    members = Members(member_metadata, rebalance_delay_ms, group_settings.settings_of, partial(_may_see, authorize))
    carrying = TransactionDeps(producer_ids, markers, transaction_checks.verify)
    coordinators.begin(CoordinatorFactory(hosting, metadata.topic_id, runtime, holdings, carrying, members))
    hosting.listeners[STATE_TOPIC] = coordinators.on_leadership_change
    producers = ProducerLimit(hosting, runtime, holdings.limits.producers_max)
    fetch = Fetch(hosting, runtime, worker)
    schemas = SchemaReader(hosting, fetch, forwarding)
    append = Append(hosting, runtime, producers, transaction_checks.verify, SchemaCheck(SchemaIds(schemas, runtime)))
    stream_snapshots = StreamSnapshots(coordinators, forwarding)
    streams = EventStreams(hosting, append, fetch, stream_snapshots, runtime, holdings)
    for listener in (coordinators.topic_changed, streams.topic_changed):
        reconciler.when_changed(listener)
    reconciler.when_made(coordinators.topic_made)
    placement = Placement(metadata, reconciler, hosting, runtime, stop_node)
    keyvalue = KeyValue(_store_in(folder, kv_settings, runtime), kv_settings, topics, runtime, resident=resident)
    return Services(
        runtime=runtime,
        hosting=hosting,
        topics=topics,
        topic_leaders=topic_leaders,
        placement=placement,
        configs=Configs(topics, placement),
        trim=Trim(hosting, runtime),
        brokers=Brokers(metadata, runtime, hosting.node),
        routing=routing,
        forwarding=forwarding,
        replica_moves=ReplicaMoves(metadata, reconciler, routing, member_removed),
        replication_rate=replication_rate,
        append=append,
        intake=DecompressionCheck(hosting, runtime, worker, decompression or DecompressionLimits()),
        fetch=fetch,
        coordinators=coordinators,
        streams=streams,
        stream_snapshots=stream_snapshots,
        producer_ids=producer_ids,
        producer_names=ProducerNames(coordinators, forwarding, runtime),
        transaction_checks=transaction_checks,
        markers=markers,
        authorize=authorize,
        rules=Rules(metadata, authorize),
        users=Users(metadata, runtime, users),
        keyvalue=keyvalue,
        key_counts=KeyCounts(keyvalue, routing, forwarding),
        metadata=metadata,
        reconciler=reconciler,
        holdings=holdings,
        group_settings=group_settings,
        quota_changes=QuotaChanges(metadata, quotas or Quotas()),
        cuts=Snapshots(folder, keyvalue, metadata, runtime),
        schema_log=SchemaLog(schemas, hosting, topics, append, forwarding, runtime),
        describe=describe,
    )


def tails_of(folder: DataFolder) -> TailFolder:
    """Return the folder for changes truncated from key logs, until they are committed on their leader."""
    return TailFolder(folder.disk, join(folder.path, TAIL_FOLDER))


def _may_see(authorize: Authorize, principal: str, topic: str) -> bool:
    return authorize.is_allowed(principal, Operation.DESCRIBE, topic)


def _store_in(
    folder: DataFolder, settings: KeyValueSettings, runtime: Runtime
) -> Callable[[Watcher | None], LocalStore]:
    path, node = join(folder.path, KEY_VALUE_FOLDER), bytes.fromhex(folder.identity.folder_id)

    def open_store(watcher: Watcher | None) -> LocalStore:
        return LocalStore(folder.disk, path, node, settings, now_ms=runtime.now_ms(), syncer=runtime, watcher=watcher)

    return open_store
