"""Own a data folder: its lock and identity, its topics, and the folder of each partition.

Invariants: a topic exists completely or not at all. It is built under another name and renamed into place, and it is
renamed away before its files are removed. A topic's name never becomes a path: folders are numbered.

    <folder>/LOCK                        held by the one process that owns the folder
             folder.a folder.b           identity and format of the folder
             cluster.a cluster.b         the node's position in its cluster's metadata (cluster/etcd/position.py)
             starts.a starts.b           the node's starts in a cluster, and whether the last one ended cleanly
                                         (cluster/registration.py)
             epochs.a epochs.b           epochs begun since the partitions' own checkpoints, if there were any
                                         (storage/state/leader_epoch_file.py)
             topics/00000001/topic.a .b  name, id, settings, partitions
                    /0000/               partition 0 (storage/log/partition_log.py), if this node holds it
                    /0000/*.damaged      segments of a copy that was replaced by another node's
                                         (storage/recovery/log_reset.py): kept until the next such copy
                    /0000.<time>.damaged a copy that could not be opened and was replaced: kept until the next one
                    /0000.gone           a partition that this node no longer holds: removed at the latest when the
                                         folder is opened
             topics/00000002.new         an unfinished creation: removed when the folder is opened
             topics/00000003.gone        an unfinished deletion: removed when the folder is opened
             topics/00000004.stray       a topic that the node's metadata does not have: set aside, never removed
             quarantine/                 damaged bytes that a repair removed, each with a report
             cut/                        files that a backup copies (storage/folder/folder_snapshot.py): removed when a
                                         node opens the folder
"""

import contextlib
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from braidlog.model.clock import Clock
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.model.names import check_topic_name
from braidlog.model.settings import TopicSettings
from braidlog.storage.compaction.compaction import Rewriter
from braidlog.storage.compaction.compaction_merge import KeyRewriting
from braidlog.storage.files import Disk, join, parent
from braidlog.storage.log.partition_log import PartitionLog, create_partition
from braidlog.storage.open_files import OPEN_FILES_MAX, FilePool
from braidlog.storage.recovery.clean_shutdown import ClosedPartition, read_closed
from braidlog.storage.segment.segment_files import DAMAGED, Identity, is_damaged_copy
from braidlog.storage.state.leader_epoch_file import LeaderEpochFile
from braidlog.storage.state.partition_state import EpochHistory
from braidlog.storage.two_copy_file import TwoCopyFile, load_newest

FOLDER_MAGIC = b"BRAIDFLD"
FORMAT = 1


class FolderIdentity(msgspec.Struct, frozen=True):
    folder_id: str
    format: int
    internal_topics: tuple[str, ...] = ()
    """Topics that the node itself created: a missing one was lost."""
    cluster: str = ""
    """The cluster whose metadata this folder follows; empty without a cluster."""


def unreadable(identity: FolderIdentity) -> str | None:
    """Return why this version cannot open the folder, or None: every incompatible change raises the folder's format."""
    if identity.format == FORMAT:
        return None
    if identity.format > FORMAT:
        return (
            f"a later version of braidlog has written to it (folder format {identity.format}, this version reads {FORMAT}): "
            "start that version again, or restore a back-up made before the upgrade; nothing was changed"
        )
    return f"its format is {identity.format}, and this version reads {FORMAT}"


TOPIC_MAGIC = b"BRAIDTOP"
_NEW = ".new"
_GONE = ".gone"
STRAY = ".stray"


class TopicMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The stored description of a topic."""

    name: str
    topic_id: str
    partitions: int
    settings: TopicSettings
    created_ms: int
    by_metadata: bool = False
    """The node created it from its metadata; False if a process without metadata did, such as an embedded log."""
    absent: tuple[int, ...] = ()
    """The partitions that only other nodes hold."""

    @property
    def held(self) -> list[int]:
        return [each for each in range(self.partitions) if each not in self.absent]


class DataFolder:
    """The topics of one folder. `read_only` takes no lock and changes nothing."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        clock: Clock,
        *,
        create: bool = True,
        read_only: bool = False,
        open_files_max: int = OPEN_FILES_MAX,
        rewriter: Rewriter = KeyRewriting,
    ) -> None:
        """Open or create the folder. `rewriter` computes compactions."""
        self._disk = disk
        self._clock = clock
        self._read_only = read_only
        self.path = path
        self.pool = FilePool(disk, open_files_max)
        self.rewriter = rewriter
        self.notes: list[str] = []
        self.broken_topics: dict[str, str] = {}
        self._topics: dict[str, tuple[str, TopicMeta]] = {}
        self._fault: StorageFault | None = None
        if not disk.exists(join(path, "folder.a")) and not disk.exists(join(path, "folder.b")):
            if not create or read_only:
                raise BrokerError(Reason.FOLDER_NOT_FOUND, f"{path} is not a braidlog data folder")
            self._refuse_unknown()
            self._make_folders(path)
        self._lock = None if read_only else disk.lock(join(path, "LOCK"))
        try:
            self.identity = self._open_identity()
            self._open_topics()
            ids = {bytes.fromhex(meta.topic_id) for _, meta in self._topics.values()}
            self._begun = LeaderEpochFile(disk, path, None if self.broken_topics else ids)
            self.notes += [f"{name}: {fault}; the other one is used" for name, fault in self._begun.faults.items()]
        except BaseException:
            self.release()
            raise

    @property
    def disk(self) -> Disk:
        """The disk of the folder, for other files that are kept in it."""
        return self._disk

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- opening ---------------------------------------------------------------------------------------------

    def _make_folders(self, path: str) -> None:
        """Create the folder and its parents, each durable in its parent folder.

        An existing parent is synced too: a process may have been killed between its creation and the sync.
        """
        if not self._disk.exists(path):
            self._make_folders(parent(path))
            self._disk.make_folder(path)
        self._disk.sync_folder(parent(path))

    def _refuse_unknown(self) -> None:
        """Reject a folder with other content: the path is probably mistyped."""
        if self._disk.exists(self.path):
            others = [name for name in self._disk.names(self.path) if name not in ("LOCK", "topics")]
            if others:
                raise BrokerError(
                    Reason.FOLDER_NOT_FOUND,
                    f"{self.path} holds other things ({', '.join(others[:3])}) and is not a braidlog data folder",
                )

    def _open_identity(self) -> FolderIdentity:
        slots = TwoCopyFile(self._disk, self.path, "folder", FOLDER_MAGIC)
        found = slots.load()
        self.notes += [f"{name}: {fault}" for name, fault in slots.faults.items()]
        if not found and (len(slots.faults) > 1 or self._has_topics()):
            why = "; ".join(self.notes) or "both descriptions are missing"
            raise StorageFault(
                f"its identity is lost; it holds topics and does not say whose they are: {why}", self.path
            )
        if not found and self._read_only:
            raise BrokerError(Reason.FOLDER_NOT_FOUND, f"{self.path} was never finished and holds nothing")
        if not found:
            identity = FolderIdentity(uuid.uuid4().hex, FORMAT)
            self._disk.make_folder(join(self.path, "topics"))
            slots.save(msgspec.json.encode(identity), copies=2)
            self._disk.sync_folder(self.path)
            return identity
        identity = msgspec.json.decode(found[0].payload, type=FolderIdentity)
        if (unread := unreadable(identity)) is not None:
            raise StorageFault(unread, self.path)
        if not self._read_only:
            self._disk.make_folder(join(self.path, "topics"))
            slots.even_out(found)
        return identity

    def remember_internal(self, name: str) -> None:
        """Record that the node is about to write to an internal topic: from now on a missing one counts as lost."""
        self._keep_internal({*self.identity.internal_topics, name})

    def forget_internal(self, name: str) -> None:
        """Accept the loss of an internal topic: the next start creates an empty one."""
        self._keep_internal({*self.identity.internal_topics} - {name})

    def join_cluster(self, cluster: str) -> None:
        """Bind this folder to the metadata of a cluster; it follows no other from then on."""
        self._keep_identity(msgspec.structs.replace(self.identity, cluster=cluster))

    def _keep_internal(self, names: set[str]) -> None:
        self._keep_identity(msgspec.structs.replace(self.identity, internal_topics=tuple(sorted(names))))

    def _keep_identity(self, identity: FolderIdentity) -> None:
        slots = TwoCopyFile(self._disk, self.path, "folder", FOLDER_MAGIC)
        slots.load()
        slots.save(msgspec.json.encode(identity), copies=2)
        self.identity = identity

    def _has_topics(self) -> bool:
        """Return whether there are topics: a folder that lost its description must not be initialized over them."""
        shelf = join(self.path, "topics")
        return self._disk.exists(shelf) and bool(self._disk.names(shelf))

    def _open_topics(self) -> None:
        shelf = join(self.path, "topics")
        if not self._read_only:
            # A killed process may have left visible names that are not durable yet: sync them before anything depends
            # on them.
            self._disk.sync_folder(shelf)
        for name in self._disk.names(shelf) if self._disk.exists(shelf) else []:
            if name.endswith(STRAY):
                self.notes.append(f"topics/{name}: set aside, for the metadata of this folder does not know it")
            elif name.endswith((_NEW, _GONE)):
                self.notes.append(f"topics/{name}: a change that was never finished was undone or finished")
                if not self._read_only:
                    self._remove_tree(join(shelf, name))
            else:
                self._open_topic(join(shelf, name), name)

    def _open_topic(self, folder: str, name: str) -> None:
        slots = TwoCopyFile(self._disk, folder, "topic", TOPIC_MAGIC)
        try:
            payload = load_newest(slots, f"topics/{name}", read_only=self._read_only)
            meta = msgspec.json.decode(payload, type=TopicMeta)
        except (StorageFault, msgspec.MsgspecError) as fault:
            self.broken_topics[name] = str(fault)  # the other topics are intact; this one reports its fault on use
            return
        self.notes += [f"topics/{name}/{file}: {fault}; the other one is used" for file, fault in slots.faults.items()]
        self._topics[meta.name] = (folder, meta)
        if not self._read_only:
            for each in meta.absent:  # remains of an interrupted creation or removal
                self._remove_partition(join(folder, f"{each:04d}"))

    # -- topics ----------------------------------------------------------------------------------------------

    def topics(self) -> list[TopicMeta]:
        return [meta for _, (_, meta) in sorted(self._topics.items())]

    def find(self, name: str) -> TopicMeta | None:
        found = self._topics.get(name)
        return None if found is None else found[1]

    def topic(self, name: str) -> TopicMeta:
        return self._find(name)[1]

    def _find(self, name: str) -> tuple[str, TopicMeta]:
        found = self._topics.get(name)
        if found is None:
            known = ", ".join(sorted(self._topics)[:5])
            hint = f"; there are: {known}" if known else "; there are none yet"
            if self.broken_topics:
                faults = "; ".join(self.broken_topics.values())
                hint += f"; {len(self.broken_topics)} cannot be opened, it may be one of them: {faults}"
            raise BrokerError(Reason.TOPIC_NOT_FOUND, f"topic {name[:60]!r} does not exist{hint}")
        return found

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: TopicSettings,
        *,
        topic_id: str | None = None,
        created_ms: int | None = None,
        absent: Collection[int] = (),
    ) -> TopicMeta:
        """Create a topic, with a folder for each partition except those in `absent`, which other nodes hold."""
        check_topic_name(name)
        _check_partitions(partitions)
        if self._fault is not None:
            raise self._fault.again()
        if name in self._topics:
            raise BrokerError(Reason.TOPIC_EXISTS, f"topic {name!r} exists")
        meta = TopicMeta(
            name=name,
            topic_id=topic_id or uuid.uuid4().hex,
            partitions=partitions,
            settings=settings,
            created_ms=self._clock.now_ms() if created_ms is None else created_ms,
            by_metadata=topic_id is not None,
            absent=tuple(sorted(absent)),
        )
        shelf = join(self.path, "topics")
        taken = (name.partition(".")[0] for name in self._disk.names(shelf))
        number = 1 + max((int(name) for name in taken if name.isascii() and name.isdigit()), default=0)
        building, folder = join(shelf, f"{number:08d}{_NEW}"), join(shelf, f"{number:08d}")
        try:
            self._disk.make_folder(building)
            for partition in meta.held:
                self._create_partition(join(building, f"{partition:04d}"), meta, partition)
            self._save_meta(building, meta)
            self._disk.sync_folder(building)
        except StorageFault:
            with contextlib.suppress(StorageFault):  # raise the first fault; the next opening removes the rest
                self._remove_tree(building)
            raise
        with self._refuse_downgrade():
            self._disk.rename(building, folder)
            self._disk.sync_folder(shelf)
        self._topics[name] = (folder, meta)
        return meta

    @contextlib.contextmanager
    def _refuse_downgrade(self) -> Iterator[None]:
        """Reject further creations and deletions after one failed half-way: it is unknown which names are durable."""
        try:
            yield
        except StorageFault as fault:
            self._fault = StorageFault(f"topics cannot be made or deleted until the folder is opened again: {fault}")
            raise

    def _create_partition(self, place: str, meta: TopicMeta, partition: int) -> None:
        identity = Identity(bytes.fromhex(meta.topic_id), partition)
        now_ms, begun = self._clock.now_ms(), self._begun.latest
        create_partition(self._disk, place, identity, meta.settings, self.pool, now_ms=now_ms, begun=begun)

    def _save_meta(self, folder: str, meta: TopicMeta) -> None:
        slots = TwoCopyFile(self._disk, folder, "topic", TOPIC_MAGIC)
        slots.load()
        slots.save(msgspec.json.encode(meta), copies=2)

    def grow_topic(self, name: str, partitions: int, *, made: int = 0, absent: Collection[int] = ()) -> TopicMeta:
        """Add partitions; they are durable before the topic counts them.

        Of the first `made` partitions, a missing one was lost. Other nodes hold those in `absent`.
        """
        folder, meta = self._find(name)
        _check_partitions(partitions)
        if partitions <= meta.partitions:
            raise BrokerError(
                Reason.INVALID_PARTITION_COUNT,
                f"topic {name!r} has {meta.partitions} partitions; it can only get more",
            )
        added = range(meta.partitions, partitions)
        self._add_partitions(folder, meta, [each for each in added if each >= made and each not in absent])
        all_absent = tuple(sorted({*meta.absent, *(each for each in added if each in absent)}))
        grown = msgspec.structs.replace(meta, partitions=partitions, absent=all_absent)
        return self._replace_meta(name, folder, grown)

    def _add_partitions(self, folder: str, meta: TopicMeta, numbers: Iterable[int]) -> None:
        for partition in numbers:
            place = join(folder, f"{partition:04d}")
            if self._disk.exists(place):
                continue  # complete and empty: left by a change that the topic's description may or may not contain
            if self._disk.exists(place + _NEW):
                self._remove_tree(place + _NEW)
            self._create_partition(place + _NEW, meta, partition)
            self._disk.rename(place + _NEW, place)
        self._disk.sync_folder(folder)

    def hold_partitions(self, name: str, numbers: Collection[int]) -> TopicMeta:
        """Create empty partitions that were absent; they are durable before the topic counts them as held."""
        folder, meta = self._find(name)
        self._add_partitions(folder, meta, numbers)
        absent = tuple(each for each in meta.absent if each not in numbers)
        return self._replace_meta(name, folder, msgspec.structs.replace(meta, absent=absent))

    def release_partitions(self, name: str, numbers: Collection[int]) -> TopicMeta:
        """Remove partitions with all their records; this process has none of them open, and other nodes hold them.

        That they are absent is durable first: the folder then does not miss them, and the next opening removes what
        a crash leaves.
        """
        folder, meta = self._find(name)
        absent = tuple(sorted({*meta.absent, *numbers}))
        meta = self._replace_meta(name, folder, msgspec.structs.replace(meta, absent=absent))
        for each in numbers:
            self._begun.forget(Identity(bytes.fromhex(meta.topic_id), each))
            self._remove_partition(join(folder, f"{each:04d}"))
        return meta

    def reset_log(self, name: str, partition: int) -> None:
        """Create an empty partition in place of one that is lost or cannot be opened; its remains are kept.

        Only the newest remains of each partition are kept. A crash in between leaves the partition lost.
        """
        folder, meta = self._find(name)
        place = join(folder, f"{partition:04d}")
        if self._disk.exists(place):
            self._disk.rename(place, f"{place}.{self._clock.now_ms()}{DAMAGED}")
        self._add_partitions(folder, meta, [partition])
        for older in [each for each in self._disk.names(folder) if is_damaged_copy(each, partition)][:-1]:
            self._remove_tree(join(folder, older))

    def _remove_partition(self, place: str) -> None:
        """Remove a partition's folder; rename it first, so that a half-removed folder never looks like a partition."""
        for unfinished in (place + _NEW, place + _GONE):
            if self._disk.exists(unfinished):
                self._remove_tree(unfinished)
        if self._disk.exists(place):
            self._disk.rename(place, place + _GONE)
            self._disk.sync_folder(parent(place))
            self._remove_tree(place + _GONE)

    def alter_topic(self, name: str, settings: TopicSettings) -> TopicMeta:
        folder, meta = self._find(name)
        return self._replace_meta(name, folder, msgspec.structs.replace(meta, settings=settings))

    def _replace_meta(self, name: str, folder: str, meta: TopicMeta) -> TopicMeta:
        self._save_meta(folder, meta)
        self._topics[name] = (folder, meta)
        return meta

    def delete_topic(self, name: str) -> None:
        folder, _ = self._find(name)
        if self._fault is not None:
            raise self._fault.again()
        del self._topics[name]
        with self._refuse_downgrade():
            self._disk.rename(folder, folder + _GONE)
            self._disk.sync_folder(join(self.path, "topics"))
        self._remove_tree(folder + _GONE)

    def quarantined(self, name: str) -> None:
        """Set a topic's folder aside: the topic no longer exists, and its files are kept."""
        folder, _ = self._find(name)
        del self._topics[name]
        self.notes.append(f"topic {name!r} is not in the metadata of this node: its folder is kept as {folder}{STRAY}")
        with self._refuse_downgrade():
            self._disk.rename(folder, folder + STRAY)
            self._disk.sync_folder(join(self.path, "topics"))

    def closed_partition_of(self, name: str, partition: int) -> ClosedPartition | None:
        """Return the summary of a cleanly closed partition without opening it; None if it must be opened."""
        folder, meta = self._find(name)
        place = join(folder, f"{partition:04d}")
        if not 0 <= partition < meta.partitions or not self._disk.exists(place):
            return None
        identity = Identity(bytes.fromhex(meta.topic_id), partition)
        return read_closed(self._disk, place, identity, self._begun.epoch_of(identity))

    def open_partition(self, name: str, partition: int) -> PartitionLog:
        folder, meta = self._find(name)
        if not 0 <= partition < meta.partitions:
            raise BrokerError(
                Reason.PARTITION_NOT_FOUND,
                f"topic {name!r} has partitions 0 to {meta.partitions - 1}, not {partition}",
            )
        if partition in meta.absent:
            raise BrokerError(Reason.NOT_LEADER, f"partition {partition} of topic {name!r} is held by other nodes")
        place = join(folder, f"{partition:04d}")
        if not self._disk.exists(place):
            raise StorageFault(
                f"the folder of partition {partition} of topic {name!r} was made and is lost: restore it from a backup, or "
                f"accept the loss of the topic: `braid topic delete {name}`, and create it again",
                place,
            )
        identity = Identity(bytes.fromhex(meta.topic_id), partition)
        begun = self._begun.epoch_of(identity)
        return PartitionLog(
            self._disk, place, identity, meta.settings, self.pool, read_only=self._read_only, begun=begun
        )

    def begin_epochs(self, begun: Sequence[tuple[PartitionLog, int]]) -> None:
        """Start an epoch at the end of each log, durably, with one save for all of them.

        For a node that takes over many partitions or follows new leaders. Blocks; no append to these logs may run
        during the call. If one log rejects its epoch, none starts.
        """
        histories = [(log, _with_epoch(log, epoch)) for log, epoch in begun if log.state.epochs.latest != epoch]
        if not histories:
            return
        number = self._begun.next_number()
        try:
            self._begun.save(number, {log.identity: history.entries() for log, history in histories})
        except StorageFault:
            for log, _ in histories:
                log.doubt_epochs(number)
            raise
        for log, history in histories:
            with log.lock:
                assert history.entries()[-1][1] == log.end_offset, "the log has grown while an epoch began"
                log.state.epochs, log.state.begun = history, number

    def partition_folder(self, name: str, partition: int) -> str:
        return join(self._find(name)[0], f"{partition:04d}")

    def _remove_tree(self, folder: str) -> None:
        for name in self._disk.names(folder):
            path = join(folder, name)
            if self._disk.is_folder(path):
                self._remove_tree(path)
            else:
                self.pool.drop(path)
                self._disk.remove(path)
        self._disk.remove_folder(folder)


def _with_epoch(log: PartitionLog, epoch: int) -> EpochHistory:
    with log.lock:
        log.check_writable()
        history = EpochHistory(log.state.epochs.entries())
        history.start_epoch(epoch, log.end_offset)
        return history


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_PER_TOPIC_MAX:
        raise BrokerError(
            Reason.INVALID_PARTITION_COUNT,
            f"a topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {partitions}",
        )
