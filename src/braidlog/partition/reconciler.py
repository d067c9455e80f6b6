"""Carry out changes of the metadata: the data folder and the hosted partitions follow the image.

Each change runs in this order: check, propose, durable, apply, reconcile, answer. Invariants:

- One change of topics runs at a time, and costs only what it changes.
- Nothing on disk or in memory changes for an event before the event is durable.
- The creation of a folder is durable before anything in it is acknowledged.
- No log is opened twice, by a start and by metadata that arrives during it.
- The next start completes what a crash interrupted.
- Commits, groups and snapshots of a topic learn of its deletion or growth before the change is acknowledged.
"""

import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from braidlog.cluster.metadata.events import FolderMade
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Decide, Metadata
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.cluster.reconciliation import (
    Action,
    AddReplicas,
    Close,
    CreateFolder,
    Follow,
    Lead,
    Open,
    Quarantined,
    RecordFolderCreated,
    Remove,
    RemoveReplicas,
    UpdateFolder,
    reconcile,
)
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.opening import Opened, open_beside, wake
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import NotOpened, PartitionRegistry, is_nodes_own, is_own
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.log.partition_log import PartitionLog

TopicChanged = Callable[[str], Awaitable[None]]
"""Called with the name of a topic that was deleted or got more partitions."""
BeforeRelease = Callable[[int, PartitionLog], object]
Faults = dict[str, StorageFault | BrokerError]
NOTED_AT_ONCE = 1_000
"""The most items in one entry of the metadata, whose size is limited."""
_TURN = "the topics' metadata"


class Reconciler:
    """Change topics with `await change(name, decide)`; no other code changes one."""

    def __init__(
        self,
        metadata: Metadata,
        folder: DataFolder,
        hosting: PartitionRegistry,
        runtime: Runtime,
        before_release: Mapping[str, BeforeRelease] = MappingProxyType({}),
    ) -> None:
        """`before_release`: by topic name, called with the log of a partition that moves to other nodes."""
        self._before_release = before_release
        self._metadata = metadata
        self._folder = folder
        self._hosting = hosting
        self._runtime = runtime
        self._turns = KeyedLock(runtime)
        self._listeners: list[TopicChanged] = []
        self._made_listeners: list[TopicChanged] = []
        self._behind: set[str] = set()
        self._unnoted = self._start()
        if self._unnoted and metadata.is_alone:
            metadata.change_exclusively(self._unnoted)
            self._unnoted = []

    def _start(self) -> list[FolderMade]:
        """Complete what a crash interrupted, before any request is served.

        Returns the created folders, to be recorded.
        """
        made: list[FolderMade] = []
        for action in self._actions(None):
            if isinstance(action, RecordFolderCreated):
                made += self._note(action.topic)
            else:
                self._on_disk(action, [])
                self._in_memory(action)
        return made

    async def note_made(self) -> None:
        """Record the folders created at the start in the metadata, if other nodes write it too.

        Call it before any request is served.
        """
        while noted := self._unnoted[:NOTED_AT_ONCE]:
            await self._metadata.change(partial(_still_hosted, noted))
            del self._unnoted[:NOTED_AT_ONCE]

    async def open_all(self) -> Opened:
        """Open all partitions of this node at its start, in a turn: arriving metadata also opens partitions."""
        async with self._turns.acquire(_TURN):
            hosting = self._hosting
            places = [(topic, each) for topic in hosting.topics.values() for each in self._closed(topic)]
            hosting.host(*await open_beside(places, hosting, self._runtime, at_rest=True))
            return Opened(list(hosting.opened()), [NotOpened(*place, why) for place, why in hosting.offline.items()])

    def when_changed(self, listener: TopicChanged) -> None:
        """Call `listener` for every deleted or grown topic, before the change is acknowledged."""
        self._listeners.append(listener)

    def when_made(self, listener: TopicChanged) -> None:
        """Call `listener` for every new topic, before the change is acknowledged."""
        self._made_listeners.append(listener)

    async def change(self, name: str, decide: Decide) -> None:
        """Change the topic `name`; raises `StorageFault` if the metadata has changed and the folder cannot follow."""
        async with self._turns.acquire(_TURN):
            await self._metadata.change(decide)
            faults = await self._catch_up()
            if name in faults:
                raise faults[name]

    async def apply_metadata(self) -> Faults:
        """Carry out changes that arrived in the metadata; return the faults of the folder, by topic."""
        async with self._turns.acquire(_TURN):
            return await self._catch_up()

    async def _catch_up(self) -> Faults:
        self._behind |= self._metadata.take_changed_topics()
        faults: Faults = {}
        for action in self._actions(self._behind):
            if _name(action) in faults:
                continue  # each step depends on the one before: a folder that could not be recorded is not served
            try:
                await self._carry_out(action)
            except (StorageFault, BrokerError) as fault:
                # A fault must not affect the other topics: the next change and the next start retry this one.
                faults.setdefault(_name(action), fault)
        self._behind = set(faults)
        return faults

    def _actions(self, names: Collection[str] | None) -> list[Action]:
        """Return the actions for changed topics; None: for all topics."""
        folder, hosting = self._folder, self._hosting
        found = folder.topics() if names is None else [meta for name in names if (meta := folder.find(name))]
        topics = self._metadata.image.topics
        # Creations of topics that are not internal to this node are recorded in the metadata instead.
        remembered = [each for each in folder.identity.internal_topics if each in topics and is_nodes_own(topics[each])]
        return list(
            reconcile(
                self._metadata.image,
                [meta for meta in found if not is_own(meta.name)],
                hosting.topics,
                node=hosting.node,
                names=names,
                remembered=remembered,
            )
        )

    def _note(self, topic: Topic) -> list[FolderMade]:
        """Record the creation of a topic's folder.

        For an internal topic of the node it is recorded in the data folder, otherwise in the metadata.
        """
        if is_nodes_own(topic):
            self._folder.remember_internal(topic.name)
            return []
        node = self._hosting.node
        return [FolderMade(topic=topic.name, topic_id=topic.topic_id, node_id=node, partitions=topic.partitions)]

    async def _carry_out(self, action: Action) -> None:
        if self._hosting.cluster is not None and isinstance(action, (Lead, Follow)):
            return  # the metadata itself informs the replica
        if isinstance(action, RecordFolderCreated):
            made = await self._runtime.blocking(lambda: self._note(action.topic))
            await self._metadata.change(lambda image: made if action.topic.name in image.topics else [])
            return
        if isinstance(action, Open):
            await self._open(action)
            if action.topic.observers:  # their requests run on the event loop, which opens nothing
                await wake(self._hosting.opened(action.topic.name), self._hosting, self._runtime)
        closing: list[Partition] = []
        if isinstance(action, Close):
            closing = self._hosting.remove(action.topic.name)
        elif isinstance(action, RemoveReplicas):
            closing = self._hosting.release(action.topic.name, action.numbers)
        if not isinstance(action, Open):
            await self._runtime.blocking(lambda: self._on_disk(action, closing))
        self._in_memory(action)
        grown = isinstance(action, Open) and action.before and action.before.partitions < action.topic.partitions
        listeners = self._listeners if grown or isinstance(action, Close) else []
        if isinstance(action, Open) and action.before is None:
            listeners = self._made_listeners
        for listener in listeners:
            await listener(_name(action))

    async def _open(self, action: Open) -> None:
        """Open a topic's new partitions on threads, before requests find them.

        If one of a new topic fails, all fail.
        """
        places = [(action.topic, number) for number in self._to_open(action)]
        if not places:
            return
        opened = await open_beside(places, self._hosting, self._runtime)
        if opened.faults and action.before is None:
            await self._runtime.blocking(lambda: _close(opened.partitions))
            raise opened.faults[0].fault
        self._hosting.host(*opened)

    def _to_open(self, action: Open) -> list[int]:
        """Return the new partitions; in a cluster also those that this node has newly received."""
        topic, hosting = action.topic, self._hosting
        first = 0 if action.before is None else action.before.partitions
        if hosting.cluster is None:
            return [each for each in range(first, topic.partitions) if hosting.holds(topic, each)]
        return self._closed(topic)

    def _closed(self, topic: Topic) -> list[int]:
        """Return the partitions of a topic that this node holds and has not tried to open yet."""
        hosting = self._hosting
        closed = [each for each in range(topic.partitions) if hosting.hosted(topic.name, each) is None]
        return [each for each in closed if hosting.holds(topic, each) and (topic.name, each) not in hosting.offline]

    def _on_disk(self, action: Action, closing: list[Partition]) -> None:
        match action:
            case Close():
                _close(closing)
            case Remove(meta):
                self._folder.delete_topic(meta.name)
            case Quarantined(meta):
                self._folder.quarantined(meta.name)
            case CreateFolder(topic, absent):
                self._folder.create_topic(
                    topic.name,
                    topic.partitions,
                    topic.settings,
                    topic_id=topic.topic_id,
                    created_ms=topic.created_ms,
                    absent=absent,
                )
            case AddReplicas(topic, numbers):
                self._folder.hold_partitions(topic.name, numbers)
            case RemoveReplicas(topic, numbers):
                self._release(topic.name, numbers, closing)
                self._folder.release_partitions(topic.name, numbers)
            case UpdateFolder(topic, meta, made, absent):
                if meta.partitions < topic.partitions:
                    self._folder.grow_topic(topic.name, topic.partitions, made=made, absent=absent)
                self._folder.alter_topic(topic.name, topic.settings)
            case Lead() | Follow():
                self._open_log(action)

    def _open_log(self, action: Lead | Follow) -> None:
        """Open the log if it is closed; a new epoch begins in it before this node leads it."""
        log = self._hosting.partition(action.topic.name, action.number).reopen()
        if isinstance(action, Lead):
            log.begin_epoch(action.epoch)

    def _release(self, name: str, numbers: Collection[int], closing: list[Partition]) -> None:
        """Release partitions, including those that moved away while this node was down."""
        before = self._before_release.get(name)
        if before is not None:
            opened = {each.number: each.log for each in closing}
            for number in numbers:
                log = opened.get(number) or self._folder.open_partition(name, number)
                before(number, log)
                log.close()
        _close(closing)

    def _in_memory(self, action: Action) -> None:
        match action:
            case CreateFolder(topic):
                self._hosting.forget_faults(topic.name)
            case Open(topic, before):
                self._hosting.put(topic)
                if before is not None and _is_altered(topic, before):
                    for hosted in self._hosting.opened(topic.name):
                        if hosted.number < before.partitions:  # the others were opened just now
                            self._renew(hosted, topic)
            case Lead(topic, number, epoch):
                hosted = self._hosting.partition(topic.name, number)
                hosted.step(self._hosting.assigned(topic, number, epoch))
                hosted.epoch_started(epoch, None)
            case Follow(topic, number):
                hosted = self._hosting.partition(topic.name, number)
                hosted.step(self._hosting.assigned(topic, number, hosted.leader_epoch))

    def _renew(self, hosted: Partition, topic: Topic) -> None:
        hosted.renew(topic.settings)
        if self._hosting.cluster is None:
            hosted.step(self._hosting.assigned(topic, hosted.number, hosted.leader_epoch))
        hosted.advance()  # `flush` or the followers may have changed, and so what counts as committed


def _close(partitions: Iterable[Partition]) -> None:
    """Close the partitions of a topic that is removed, even if some do not close cleanly."""
    for hosted in partitions:
        with contextlib.suppress(StorageFault):
            hosted.close()


def _is_altered(topic: Topic, before: Topic) -> bool:
    """Return whether its partitions must be informed.

    They need not be if only leaders and replica sets changed, possibly of thousands of partitions.
    """
    same = ("settings", "observers", "min_in_sync")
    return any(getattr(topic, each) != getattr(before, each) for each in same)


def _still_hosted(made: Iterable[FolderMade], image: Image) -> list[FolderMade]:
    return [each for each in made if each.topic in image.topics and image.topics[each.topic].topic_id == each.topic_id]


def _name(action: Action) -> str:
    return action.meta.name if isinstance(action, (Remove, Quarantined)) else action.topic.name
