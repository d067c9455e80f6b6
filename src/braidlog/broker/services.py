"""The services of one node, opened together.

Knows: which service needs which, and what is kept in the journal. Refuses to know: sockets, dialects.
Order of opening: the journal's topic, the tables from it, the topics, then everything that stands on them; transactions that
had been decided are ended before anyone is served.
"""

from collections.abc import Callable, Mapping

import msgspec

from braidlog.broker.append import Append
from braidlog.broker.authorize import Authorize, Rule
from braidlog.broker.brokers import Broker, Brokers
from braidlog.broker.configs import Configs
from braidlog.broker.fetch import Fetch
from braidlog.broker.groups.elected import INITIAL_DELAY_MS
from braidlog.broker.groups.group import GroupImage
from braidlog.broker.groups.kept import KeptGroups
from braidlog.broker.groups.seats import ElectedImage
from braidlog.broker.groups.service import Groups
from braidlog.broker.keyvalue import KeyValue
from braidlog.broker.named import NamedProducer, NamedProducers
from braidlog.broker.offsets import Committed, Offsets
from braidlog.broker.ports import World
from braidlog.broker.producers import IdBlock, ProducerIds
from braidlog.broker.rules import Rules
from braidlog.broker.staging import Sink, Staging
from braidlog.broker.streams import EventStreams, Snapshot
from braidlog.broker.topics import PartitionRole, Placement, Topics
from braidlog.broker.transactions import Transaction, Transactions
from braidlog.broker.trim import Trim
from braidlog.broker.users import User, Users
from braidlog.cluster.journal import Journal, Key, Table, load_tables
from braidlog.kv.settings import KeyValueSettings
from braidlog.model.clock import Clock
from braidlog.model.errors import StorageFault
from braidlog.model.settings import Flush, TopicSettings
from braidlog.storage.files import join
from braidlog.storage.folder import DataFolder

JOURNAL_TOPIC = "__state"
KEY_VALUE_FOLDER = "kv"


class Services(msgspec.Struct, frozen=True):
    """What an adapter may call."""

    world: World
    topics: Topics
    configs: Configs
    trim: Trim
    brokers: Brokers
    append: Append
    fetch: Fetch
    offsets: Offsets
    groups: Groups
    streams: EventStreams
    producer_ids: ProducerIds
    named_producers: NamedProducers
    transactions: Transactions
    staging: Staging
    authorize: Authorize
    rules: Rules
    users: Users
    keyvalue: KeyValue
    journal: Journal


def open_services(  # noqa: PLR0913 - all that a node is opened with
    folder: DataFolder,
    world: World,
    clock: Clock,
    *,
    node: str,
    defaults: TopicSettings,
    authorize: Authorize,
    users: Mapping[str, str] | None = None,
    rebalance_delay_ms: int = INITIAL_DELAY_MS,
    kv: KeyValueSettings | None = None,
    resident: Callable[[], int] = lambda: 0,
) -> Services:
    """Open every service over a data folder, but for the key-value store: whoever serves it opens it.

    `users`: name → verifier (`users.py`) of those in the configuration.
    """
    if not any(meta.name == JOURNAL_TOPIC for meta in folder.topics()):
        folder.create_topic(
            JOURNAL_TOPIC, 1, TopicSettings(flush=Flush.ACK, compact=True, segment_bytes=16 * 1024 * 1024)
        )
    journal = Journal(folder.open_partition(JOURNAL_TOPIC, 0), clock)
    if journal.partition.damages:
        raise StorageFault(f"the broker's own journal is damaged: {journal.partition.damages[0]}")
    kinds: dict[str, type] = {
        "offset": Committed,
        "group": GroupImage,
        "elected-group": ElectedImage,
        "placement": Placement,
        "role": PartitionRole,
        "producer-ids": IdBlock,
        "named-producer": NamedProducer,
        "transaction": Transaction,
        "sink": Sink,
        "snapshot": Snapshot,
        "broker": Broker,
        "rule": Rule,
        "user": User,
    }
    tables = {kind: Table(journal, kind, value_type) for kind, value_type in kinds.items()}
    load_tables(journal, list(tables.values()), _refuse_unknown)
    topics = Topics(folder, world, node, tables["placement"], tables["role"], defaults)
    offsets = Offsets(journal, tables["offset"], topics, world)
    producer_ids = ProducerIds(tables["producer-ids"], world)
    transactions = Transactions(tables["transaction"], producer_ids, topics, offsets, world)
    append = Append(topics, world, transactions.check_append)
    kept = KeptGroups(tables["group"], tables["elected-group"], topics.partition_count, world, rebalance_delay_ms)
    groups = Groups(kept, offsets, topics, world)
    streams = EventStreams(topics, append, tables["snapshot"], world)
    for listener in (offsets.topic_changed, streams.topic_changed, groups.topic_changed):
        topics.when_changed(listener)
    return Services(
        world=world,
        topics=topics,
        configs=Configs(topics),
        trim=Trim(topics, world),
        brokers=Brokers(tables["broker"], world, node),
        append=append,
        fetch=Fetch(topics, world),
        offsets=offsets,
        groups=groups,
        streams=streams,
        producer_ids=producer_ids,
        named_producers=NamedProducers(tables["named-producer"], producer_ids, world),
        transactions=transactions,
        staging=Staging(tables["sink"], transactions, world),
        authorize=authorize,
        rules=Rules(tables["rule"], authorize, world),
        users=Users(tables["user"], world, users),
        keyvalue=KeyValue(
            folder.disk,
            join(folder.path, KEY_VALUE_FOLDER),
            bytes.fromhex(folder.identity.folder_id),
            kv or KeyValueSettings(),
            topics,
            world,
            resident=resident,
        ),
        journal=journal,
    )


def _refuse_unknown(key: Key) -> None:
    raise StorageFault(f"the journal holds an entry of an unknown kind, {key[:1]}: it was written by a later version")
