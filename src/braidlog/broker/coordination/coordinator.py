"""A coordinator: groups, committed offsets, transactions, sinks and named producers, stored in one journal.

Does not handle: replication of the journal.
Invariant: all state of one coordinator is in one log, so that changes made together survive a crash together.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from braidlog.coordinator.consumer_groups.messages import ConsumerGroupImage, ConsumerMember
from braidlog.coordinator.consumer_groups.service import ConsumerGroupSettings, MaySee, SettingsOf
from braidlog.coordinator.groups.classic_group import INITIAL_DELAY_MS
from braidlog.coordinator.groups.group import GroupImage
from braidlog.coordinator.groups.member_metadata import MemberMetadata
from braidlog.coordinator.groups.messages import ClassicGroupImage
from braidlog.coordinator.groups.registry import GroupRegistry, GroupTables
from braidlog.coordinator.groups.service import Groups
from braidlog.coordinator.journal import Journal, Key, Table
from braidlog.coordinator.offsets import Committed, Offsets, TopicId
from braidlog.coordinator.snapshot_store import KeptSnapshot, Snapshots, snapshot_name
from braidlog.coordinator.state_limits import COMMIT_BYTES, PLACE_BYTES, Account, StateKind, StateUsage
from braidlog.coordinator.transactions.markers import MarkerWriter
from braidlog.coordinator.transactions.named_producers import NamedProducer, NamedProducers
from braidlog.coordinator.transactions.pending_commits import PendingCommit, PendingCommits
from braidlog.coordinator.transactions.producer_ids import ProducerIds
from braidlog.coordinator.transactions.staged_batches import Sink, Staging
from braidlog.coordinator.transactions.transaction import Transaction
from braidlog.coordinator.transactions.transactions import Transactions
from braidlog.model.errors import StorageFault
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.partition.produce.transaction_verification import Ask
from braidlog.security.access_rule import Kind
from braidlog.security.resource_owners import Owner, Owners

KINDS: dict[str, type] = {
    "offset": Committed,
    "group": GroupImage,
    "classic-group": ClassicGroupImage,
    "consumer-group": ConsumerGroupImage,
    "consumer-member": ConsumerMember,
    "named-producer": NamedProducer,
    "transaction": Transaction,
    "pending-commit": PendingCommit,
    "sink": Sink,
    "snapshot": KeptSnapshot,
    "owner": Owner,
}
"""What a journal stores, by the first word of its keys."""


class Coordinator(msgspec.Struct, frozen=True):
    """The services of one coordinator shard, and the journal that stores their state."""

    number: int
    """The shard's number."""
    epoch: int
    """The epoch in which this node leads the shard."""
    journal: Journal
    tables: dict[str, Table]
    registry: GroupRegistry
    offsets: Offsets
    pending_commits: PendingCommits
    groups: Groups
    transactions: Transactions
    staging: Staging
    named_producers: NamedProducers
    snapshots: Snapshots
    owners: Owners

    async def discard(self) -> None:
        """Drop the state from memory: another node leads the shard."""
        self.registry.forget()
        for table in self.tables.values():
            await table.forget()


class Members(NamedTuple):
    """Dependencies of groups."""

    metadata: MemberMetadata | None = None
    rebalance_delay_ms: int = INITIAL_DELAY_MS
    consumer_groups: SettingsOf = lambda _: ConsumerGroupSettings()
    may_see: MaySee = lambda _, __: True


class TransactionDeps(NamedTuple):
    """Dependencies of transactions: they reach partitions and coordinators on every node."""

    ids: ProducerIds
    markers: MarkerWriter
    ask: Ask


class CoordinatorFactory(NamedTuple):
    """Builds the coordinators of a node from shared dependencies."""

    hosting: PartitionRegistry
    topic_id: TopicId
    runtime: Runtime
    holdings: StateUsage
    carrying: TransactionDeps
    members: Members

    def tables(self, journal: Journal) -> dict[str, Table]:
        holdings = self.holdings
        accounts = {
            "offset": Account(holdings, StateKind.GROUPS, lambda committed: len(committed.metadata)),
            "named-producer": Account(holdings, StateKind.NAMED_PRODUCERS),
            "transaction": Account(holdings, StateKind.TRANSACTIONAL_IDS, _size_of),
            "pending-commit": Account(holdings, StateKind.GROUPS, lambda found: len(found.commits) * COMMIT_BYTES),
            "sink": Account(holdings, StateKind.SINKS),
            "snapshot": Account(holdings, StateKind.SNAPSHOTS, lambda found: len(found.payload), snapshot_name),
        }
        return {kind: Table(journal, kind, value_type, accounts.get(kind)) for kind, value_type in KINDS.items()}

    def coordinator(self, journal: Journal, tables: dict[str, Table], number: int, epoch: int) -> Coordinator:
        """Build the coordinator on loaded tables."""
        hosting, runtime, holdings = self.hosting, self.runtime, self.holdings
        offsets = Offsets(tables["offset"], hosting, runtime, holdings, self.topic_id)
        ids, markers, ask = self.carrying
        transactions = Transactions(tables["transaction"], ids, hosting, offsets, runtime, holdings, markers)
        kinds = GroupTables(*(tables[kind] for kind in ("group", "classic-group", "consumer-group", "consumer-member")))
        metadata, delay_ms, consumer_groups, may_see = self.members
        registry = GroupRegistry(kinds, hosting.partition_count, runtime, holdings, delay_ms)
        groups = Groups(registry, offsets, hosting, runtime, metadata, consumer_groups, may_see)
        names: dict[Kind, Callable[[], Any]] = {Kind.GROUP: groups.names, Kind.TRANSACTIONAL_ID: transactions.names}
        return Coordinator(
            number=number,
            epoch=epoch,
            journal=journal,
            tables=tables,
            registry=registry,
            offsets=offsets,
            pending_commits=PendingCommits(tables["pending-commit"], offsets, ask, holdings),
            groups=groups,
            transactions=transactions,
            staging=Staging(tables["sink"], transactions, runtime, holdings),
            named_producers=NamedProducers(tables["named-producer"], ids, runtime, holdings),
            snapshots=Snapshots(tables["snapshot"], holdings, self.topic_id),
            owners=Owners(tables["owner"], names, runtime),
        )


def refuse_unknown(key: Key) -> None:
    raise StorageFault(f"the journal holds an entry of an unknown kind, {key[:1]}: it was written by a later version")


def _size_of(found: Transaction) -> int:
    return len(found.partitions) * PLACE_BYTES + len(found.offsets) * COMMIT_BYTES
