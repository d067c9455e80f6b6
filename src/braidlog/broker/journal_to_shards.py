"""What a node that was alone keeps in its journal becomes entries of its cluster's shards, when its folder is moved there.

Knows: under which name each kind of entry is kept. Refuses to know: the steps of the move (`cluster/etcd/moving.py`).
Invariants: nothing is written to the journal, and nobody serves shards before the move is done; so each try makes the same topic
anew, of all that is in the journal, and the end of the move is the mark that this was done.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from braidlog.broker.coordinator import KINDS, refuse_unknown
from braidlog.cluster.events import CreateTopic, Event, FolderMade
from braidlog.cluster.local import JOURNAL_TOPIC
from braidlog.codec.records import encode_batch
from braidlog.coordinator.journal import Journal, Key, Table, load_tables
from braidlog.coordinator.pending_commits import Pending
from braidlog.coordinator.shards import SHARDS, STATE_SETTINGS, STATE_TOPIC, place_of
from braidlog.coordinator.snapshots import snapshot_name
from braidlog.coordinator.transaction import Transaction
from braidlog.model.world import World
from braidlog.partition.internal_topic import JOURNAL_SETTINGS, open_internal_topic
from braidlog.partition.offline_topic import write_topic
from braidlog.storage.folder import DataFolder

NAME_AT: Final = {
    "offset": 1,
    "group": 1,
    "classic-group": 1,
    "consumer-group": 1,
    "consumer-member": 1,
    "named-producer": 1,
    "transaction": 1,
    "pending-commit": 1,
    "sink": 1,
    "owner": 2,
}
"""Where in a key the name is that says in which shard it is kept. Snapshots of streams have names of two words."""

Entries = dict[Key, msgspec.Struct]


def read_shards(folder: DataFolder, world: World, node: str) -> Callable[[], Sequence[Event]]:
    """Read and check what is to be moved; what is returned writes it to shards in the folder, and says what is true then."""
    log = open_internal_topic(folder, JOURNAL_TOPIC, JOURNAL_SETTINGS, world)
    try:
        shards = by_shard(Journal(log, world))
        topic_id = uuid.uuid5(uuid.UUID(bytes=log.identity), STATE_TOPIC).hex  # the same for each try
    finally:
        log.close()

    def write() -> Sequence[Event]:
        if not shards:
            return ()  # the topic is made when it is first needed, on all nodes that are there by then
        now_ms = world.now_ms()
        batches = {number: (_batch(*entry, now_ms) for entry in shards[number].items()) for number in shards}
        created = CreateTopic(
            topic=STATE_TOPIC,
            topic_id=topic_id,
            partitions=SHARDS,
            settings=STATE_SETTINGS,
            created_ms=folder.topic(JOURNAL_TOPIC).created_ms,
            replicas=(node,),
        )
        write_topic(folder, created, batches, now_ms)
        return [created, FolderMade(topic=STATE_TOPIC, topic_id=topic_id, node_id=node, partitions=SHARDS)]

    return write


def by_shard(journal: Journal) -> dict[int, Entries]:
    """The last value of each key, in the shard that its name is kept in."""
    tables = {kind: Table(journal, kind, value_type) for kind, value_type in KINDS.items()}
    load_tables(journal, list(tables.values()), refuse_unknown)
    last = {key: value for table in tables.values() for key, value in table.values.items()}
    for key, found in tables["transaction"].values.items():
        last |= _without_commits(key, found, tables["pending-commit"])
    shards: dict[int, Entries] = {}
    for key, value in last.items():
        shards.setdefault(place_of(_name_in(key)), {})[key] = value
    return shards


def _name_in(key: Key) -> str:
    return snapshot_name(key) if key[0] == "snapshot" else str(key[NAME_AT[str(key[0])]])


def _without_commits(key: Key, found: Transaction, pending: Table) -> Entries:
    """A transaction in which an earlier version staged commits: they are pending with their groups, which may be elsewhere."""
    changed: Entries = {}
    for group in dict.fromkeys(group for group, _ in found.offsets):
        later: Pending | None = pending.get(group, found.producer_id)
        commits = [*(commit for of, commit in found.offsets if of == group), *(later.commits if later else ())]
        staged = {(commit.topic, commit.partition): commit for commit in commits}
        place = (pending.kind, group, found.producer_id)
        changed[place] = Pending(found.epoch, found.number, list(staged.values()))
    groups = list(dict.fromkeys([*found.groups, *(group for group, _ in found.offsets)]))
    return changed | {key: msgspec.structs.replace(found, offsets=[], groups=groups)}


def _batch(key: Key, value: msgspec.Struct, now_ms: int) -> bytes:
    """Each by itself: what had room in a batch of the journal has room in this one."""
    return encode_batch([msgspec.json.encode(value)], keys=[msgspec.json.encode(key)], base_timestamp=now_ms)
