"""Recovers a cluster whose etcd was lost or restored from an old copy, as a new cluster above everything its nodes
have seen.

Uses the folders of all nodes, all stopped, and what remains in etcd.
Invariants: leader epochs, entry numbers (and so incarnations) and producer ids exceed all that a node may have used.
The copy with the latest record leads; it holds every committed record if no folder is left out. One write replaces the
old log by the new one. Every step can be repeated.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from braidlog.cluster.etcd import image_snapshots
from braidlog.cluster.etcd.entries import Keys, digest, encode_entry, one
from braidlog.cluster.etcd.migration import write_initial_log
from braidlog.cluster.etcd.port import Etcd
from braidlog.cluster.etcd.position import NO_ENTRY, Position, PositionFile, read_position
from braidlog.cluster.membership import Member, Membership
from braidlog.cluster.metadata.history import History
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Entry
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.cluster.registration import StartFile, StartRecord
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.names import own_number
from braidlog.replication.assignment import Assignment, Nodes
from braidlog.replication.control.incarnation import Life, Registration
from braidlog.storage.folder.data_folder import DataFolder, TopicMeta

IDS_PER_ENTRY_MAX: Final = 1000
"""Maximum number of producer ids that one entry assigns."""
MIN_IN_SYNC: Final = 2


class Copy(NamedTuple):
    """Log end of a replica, ordered by the epoch of its last record, and the latest epoch that it knows."""

    record_epoch: int
    end: int
    latest_epoch: int


class Seen(NamedTuple):
    """Contents of one node's folder."""

    node: str
    position: Position
    folder_id: str
    incarnation: int
    topics: dict[str, TopicMeta]
    """By topic id: the topics created by the metadata."""
    copies: dict[tuple[str, int], Copy]
    """By topic id and partition: the undamaged copies."""
    producer_id_max: int

    @property
    def number(self) -> int:
        return own_number(self.node)


def inspect_folder(folder: DataFolder) -> Seen:
    """Open every partition as a start would, and close it durably."""
    kept = read_position(folder.disk, folder.path)
    if kept is None:
        raise BrokerError(Reason.FOLDER_NOT_FOUND, f"{folder.path} never belonged to a cluster: omit it")
    topics = {meta.topic_id: meta for meta in folder.topics() if meta.by_metadata}
    copies: dict[tuple[str, int], Copy] = {}
    producer_id_max = 0
    for meta in topics.values():
        for number in range(meta.partitions):
            try:
                log = folder.open_partition(meta.name, number)
            except StorageFault:
                continue  # lost or damaged: reported when its node starts
            log.replicate()
            if not log.damages:
                epochs = log.state.epochs
                copies[meta.topic_id, number] = Copy(epochs.at(log.end_offset - 1), log.end_offset, epochs.latest)
                ids = (each.producer_id for each in log.state.producers.image())
                producer_id_max = max(producer_id_max, *ids, 0)
            log.close()
    starts = StartFile(folder.disk, folder.path).load()
    return Seen(*kept, folder.identity.folder_id, starts.remembers, topics, copies, producer_id_max)


async def recover(
    etcd: Etcd, keys: Keys, folders: Sequence[DataFolder], *, new_cluster: str, now_ms: int, lost: Collection[int] = ()
) -> Position:
    """Recover the cluster from `folders`, those of all nodes except the `lost` ones."""
    if alive := (await etcd.read(keys.alive, keys_only=True)).items:
        names = ", ".join(item.key[len(keys.alive.first) :].decode() for item in alive)
        raise BrokerError(Reason.VERSION_CONFLICT, f"node {names} runs or stopped seconds ago: stop all nodes first")
    seen = [inspect_folder(folder) for folder in folders]
    before = (await etcd.read(one(keys.head))).items
    loaded = await image_snapshots.load(etcd, keys, History())
    head = loaded.head if loaded else Position("")
    _check_clusters(seen, head)
    seq = max(head.seq, *(each.position.seq for each in seen)) + 1
    image = recovered(loaded.image if loaded else Image(), seen, seq - head.seq, now_ms=now_ms, lost=lost)
    entry = encode_entry(Entry(seq, [], now_ms), seen[0].node, new_cluster, NO_ENTRY)
    reached = Position(new_cluster, seq, digest(entry))
    await write_initial_log(etcd, keys, image, entry, reached, before=before[0].value if before else None)
    for folder, each in zip(folders, seen, strict=True):
        # Every partition was closed durably, so its records survive a machine crash.
        starts, position = StartFile(folder.disk, folder.path), PositionFile(folder.disk, folder.path, each.node)
        starts.load()  # determines which of the two slots is newer
        starts.save(StartRecord(remembers=each.incarnation, stopped_cleanly=True))
        folder.join_cluster(new_cluster)
        position.load()
        position.save(reached)
    return reached


def _check_clusters(seen: Sequence[Seen], head: Position) -> None:
    """Check that all folders belong to one cluster. Folders already converted by an earlier attempt belong to the
    cluster in etcd.
    """
    clusters = {each.position.cluster for each in seen} - {head.cluster}
    numbers = [each.number for each in seen]
    if len(clusters) > 1:
        raise BrokerError(
            Reason.VERSION_CONFLICT, f"the folders belong to several clusters: {', '.join(sorted(clusters))}"
        )
    if len(set(numbers)) != len(numbers):
        raise BrokerError(
            Reason.VERSION_CONFLICT, "two of the folders belong to the same node: pass only the newer one"
        )


# ── Recovered metadata (pure) ─────────────────────────────────────────────────────────────────────────────────────────────────


def recovered(
    known: Image, seen: Sequence[Seen], entries_lost: int, *, now_ms: int, lost: Collection[int] = ()
) -> Image:
    image = known.copy()
    missing = {int(each) for each in image.cluster.members} - {each.number for each in seen} - {*lost}
    if missing:
        raise BrokerError(
            Reason.REPLICA_NOT_FOUND,
            f"node {', '.join(map(str, sorted(missing)))} belongs to this cluster, but its folder was not passed: the "
            "data that only this node holds would be lost. Pass its folder, or name it with --lost if it is lost "
            "permanently",
        )
    image.cluster = Membership({str(each.number): _member(known, each) for each in seen}, known.cluster.version)
    _merge_topics(image, seen, now_ms)
    for name, topic in image.topics.items():
        held = tuple(
            _recovered_assignment(topic.assignments[number], _copies(seen, topic.topic_id, number), lost)
            for number in range(topic.partitions)
        )
        image.topics[name] = msgspec.structs.replace(topic, assignments=held, holder="", unflushed=())
    given = max(image.ids_taken, *(each.producer_id_max + 1 for each in seen))
    image.ids_taken = given + entries_lost * IDS_PER_ENTRY_MAX
    return image


def _member(known: Image, seen: Seen) -> Member:
    """The member as fenced until it registers, with the incarnation that its folder knows."""
    life = Life(boot_id="", folder_id=seen.folder_id, remembers=seen.incarnation)
    before = known.cluster.member(seen.number)
    away = Member(Registration(seen.incarnation, life), is_fenced=True, name=seen.node)
    return away if before is None else msgspec.structs.replace(away, rack=before.rack, versions=before.versions)


def _merge_topics(image: Image, seen: Sequence[Seen], now_ms: int) -> None:
    """Add topics that etcd lost but folders hold; delete those that no folder holds."""
    for topic in list(image.topics.values()):
        if not any(topic.topic_id in each.topics for each in seen):
            del image.topics[topic.name]
            image.deleted[topic.topic_id] = now_ms
    for meta in {topic_id: meta for each in seen for topic_id, meta in each.topics.items()}.values():
        found = image.topics.get(meta.name)
        if meta.topic_id in image.deleted or (found is not None and found.topic_id != meta.topic_id):
            continue
        count = max(each.topics[meta.topic_id].partitions for each in seen if meta.topic_id in each.topics)
        had = () if found is None else found.assignments
        added = tuple(_new_assignment(_copies(seen, meta.topic_id, number), seen) for number in range(len(had), count))
        if found is None:
            min_in_sync = min(MIN_IN_SYNC, *(len(each.replicas) for each in added))
            fields = {name: getattr(meta, name) for name in ("name", "topic_id", "settings", "created_ms")}
            found = Topic(**fields, min_in_sync=min_in_sync, assignments=())
        image.topics[meta.name] = msgspec.structs.replace(found, assignments=had + added)
        image.made[meta.topic_id] = {
            each.node: each.topics[meta.topic_id].partitions for each in seen if meta.topic_id in each.topics
        }


def _new_assignment(copies: Mapping[int, Copy], seen: Sequence[Seen]) -> Assignment:
    """Nodes that hold records of the partition, or all nodes if none does."""
    with_records: Nodes = tuple(sorted(node for node, copy in copies.items() if copy.end))
    return Assignment(replicas=with_records or tuple(sorted(each.number for each in seen)), in_sync=(), leader=None)


def _copies(seen: Sequence[Seen], topic_id: str, number: int) -> dict[int, Copy]:
    return {each.number: each.copies[topic_id, number] for each in seen if (topic_id, number) in each.copies}


def _recovered_assignment(known: Assignment, copies: Mapping[int, Copy], lost: Collection[int]) -> Assignment:
    """Make the copy with the latest record the leader; the others follow it and truncate what it lacks."""
    replicas = tuple(node for node in known.replicas if node not in lost)
    latest = max((known.leader_epoch, *(each.latest_epoch for each in copies.values())))
    order = (*replicas, *sorted({*copies} - {*replicas}))
    first = max((node for node in order if node in copies), key=lambda node: copies[node][:2], default=None)
    if first is not None and first not in replicas:
        replicas = (*replicas, first)
    return Assignment(
        replicas=replicas or known.replicas,
        in_sync=() if first is None else (first,),
        torn=replicas if first is None else (),  # every copy is damaged
        leader=None,
        leader_epoch=latest + 1,
        partition_epoch=known.partition_epoch + 1,
        last_leader=first,
        unclean_epoch=known.unclean_epoch,
    )
