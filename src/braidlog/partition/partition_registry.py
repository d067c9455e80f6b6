"""Find the partition that serves a topic name and a partition number on this node.

Does not handle: permission to create, change or delete topics (`broker/topics.py`), and records. Invariants:
requests cannot see internal topics (names that begin with two underscores), except the published ones, which only
the broker writes. A partition is opened once.
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from braidlog.cluster.metadata.local_store import INTERNAL_PREFIX, METADATA_TOPIC
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.kv.replicated.slots import FEED_TOPIC
from braidlog.model.errors import BrokerError, NotLeaderError, Reason, StorageFault
from braidlog.model.names import no_topic, own_number
from braidlog.model.reporting.node_report import TableState
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.maintenance.log_maintenance import maintain_log
from braidlog.partition.partition import Partition
from braidlog.partition.partition_context import Listeners, PartitionContext, StandaloneContext
from braidlog.replication.messages import Assigned
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.folder.quarantine import find_quarantined

PUBLISHED = frozenset({FEED_TOPIC})
"""Internal topics that clients can read; only the broker writes them."""


def is_hidden(name: str) -> bool:
    """Return whether a topic is internal and invisible to clients."""
    return name.startswith(INTERNAL_PREFIX) and name not in PUBLISHED


def is_nodes_own(topic: Topic) -> bool:
    """Return whether this is an internal topic of a standalone node.

    The data folder remembers that it was created; after a loss `braid log accept-loss` allows its creation again.
    """
    return bool(topic.holder) and topic.name.startswith(INTERNAL_PREFIX)


def is_own(name: str) -> bool:
    """Return whether a topic belongs to the node itself and is not in the metadata."""
    return name == METADATA_TOPIC


def refuse_internal(name: str) -> None:
    """Reject a request to create, change or delete an internal topic."""
    if name.startswith(INTERNAL_PREFIX):
        raise BrokerError(Reason.INVALID_TOPIC_NAME, f"names that begin with {INTERNAL_PREFIX!r} are the broker's own")


def refuse_published(name: str) -> None:
    """Reject a request that would change the content of a published internal topic."""
    if name in PUBLISHED:
        refuse_internal(name)


class NotOpened(NamedTuple):
    topic: str
    number: int
    fault: StorageFault


class PartitionRegistry:
    """The topics and partitions on this node, by name, by id and by partition."""

    def __init__(
        self, folder: DataFolder, node: str, runtime: Runtime, cluster: PartitionContext | None = None
    ) -> None:
        """`cluster` is the context of partitions with replicas on several nodes; None on a standalone node."""
        self._folder = folder
        self._topics: dict[str, Topic] = {}
        self._hidden: dict[str, Topic] = {}
        self.topics: Mapping[str, Topic] = ChainMap(self._topics, self._hidden)
        """All topics, including those that clients cannot see."""
        self._hosted: dict[tuple[str, int], Partition] = {}
        self.offline: dict[tuple[str, int], StorageFault] = {}
        """Partitions that could not be opened, with the fault."""
        self._names_by_id: dict[str, str] = {}
        self.tables: dict[str, TableState] = {}
        """The last known state of each table, by topic id."""
        self.quarantined = {"damaged": 0, "stray": 0}
        """The number of quarantined copies and stray topics at the last count."""
        self.node = node
        self.number = own_number(node)
        self._alone = StandaloneContext(node, self.number, runtime)
        self.cluster = cluster

    @property
    def data_dir(self) -> str:
        return self._folder.path

    @property
    def cluster_id(self) -> str:
        """The id of the cluster whose metadata the folder follows, in hex.

        A standalone node uses the id of its metadata log, which a backup of the folder keeps.
        """
        return self._folder.identity.cluster or self._folder.topic(METADATA_TOPIC).topic_id

    @property
    def broken(self) -> Mapping[str, str]:
        """Topic folders that could not be read at the node's start, with the reason."""
        return self._folder.broken_topics

    @property
    def listeners(self) -> Listeners:
        """Callbacks by topic for the start and end of this node's leadership."""
        return (self.cluster or self._alone).listeners

    def count_set_aside(self) -> None:
        """Count the quarantined files in this folder, on a thread. An operator may remove them while the node runs."""
        found = find_quarantined(self._folder.disk, self._folder.path)
        self.quarantined = {"damaged": len(found.damaged), "stray": len(found.strays)}

    # -- topics ----------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The clients' topics, sorted."""
        return sorted(self._topics)

    def exists(self, name: str) -> bool:
        return name in self._topics

    def find(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def meta(self, name: str) -> Topic:
        meta = self._topics.get(name)
        if meta is None:
            raise no_topic(name)
        return meta

    def partition_count(self, name: str) -> int:
        """Return the number of a topic's partitions; 0 if the topic does not exist."""
        meta = self._topics.get(name)
        return 0 if meta is None else meta.partitions

    def checks_schemas(self, name: str) -> bool:
        """Return whether the values of a topic must name schemas."""
        meta = self._topics.get(name)
        return meta is not None and meta.settings.value_schema_check

    def name_of(self, topic_id: str) -> str | None:
        """Return the name of the topic with this id, or None."""
        name = self._names_by_id.get(topic_id)
        found = None if name is None else self._topics.get(name) or self._hidden.get(name)
        if found is None or found.topic_id != topic_id:
            self._names_by_id = {meta.topic_id: meta.name for meta in self.topics.values()}
            name = self._names_by_id.get(topic_id)
        return name

    # -- partitions ------------------------------------------------------------------------------------------

    def check_partition(self, name: str, number: int) -> Topic:
        """Raise if the partition does not exist."""
        meta = self.meta(name)
        if not 0 <= number < meta.partitions:
            raise BrokerError(
                Reason.PARTITION_NOT_FOUND,
                f"topic {name!r} has partitions 0 to {meta.partitions - 1}, not {number}",
            )
        return meta

    def partition(self, name: str, number: int) -> Partition:
        """Return the hosted partition; raise the fault of one that could not be opened.

        `opening.retry` tries again to open such partitions, on a thread.
        """
        hosted = self._hosted.get((name, number))
        if hosted is None or name in self._hidden:
            meta = self.check_partition(name, number)
            if (fault := self.offline.get((name, number))) is not None:
                raise fault.again()
            self.require_held(meta, number)
            hosted = self._hosted[(name, number)] = self.open_partition(meta, number)
        return hosted

    def holds(self, topic: Topic, number: int) -> bool:
        """Return whether this node has a replica of a partition. A standalone node has all."""
        return bool(topic.holder) or self.number in topic.assignments[number].replicas

    def require_held(self, topic: Topic, number: int) -> None:
        if not self.holds(topic, number):
            nodes = ", ".join(map(str, topic.assignments[number].replicas))
            raise NotLeaderError(
                topic.name, number, f"node {self.number} has no replica of {topic.name}/{number}: ask nodes {nodes}"
            )

    def partitions(self, name: str) -> list[Partition]:
        """Return the partitions of a topic that this node has."""
        meta = self.meta(name)
        return [self.partition(name, number) for number in range(meta.partitions) if self.holds(meta, number)]

    def sole_partition(self, name: str) -> Partition:
        """Return the partition of a topic with only one, for dialects without partitions."""
        self.check_sole_partition(name)
        return self.partition(name, 0)

    def check_sole_partition(self, name: str) -> None:
        """Raise unless the topic has exactly one partition, here or on another node."""
        partitions = self.meta(name).partitions
        if partitions != 1:
            raise BrokerError(
                Reason.INVALID_PARTITION_COUNT,
                f"topic {name!r} has {partitions} partitions; this protocol knows none, and serves topics of one",
            )

    def hosted(self, name: str, number: int) -> Partition | None:
        """Return the partition if it is registered, without opening its log."""
        return self._hosted.get((name, number))

    def opened(self, name: str | None = None) -> Iterator[Partition]:
        """Yield the partitions that could be opened, of one topic or of all; the logs of some may be closed."""
        if name is None:
            yield from list(self._hosted.values())
            return
        topic = self.topics.get(name)
        for number in range(0 if topic is None else topic.partitions):
            if (hosted := self._hosted.get((name, number))) is not None:
                yield hosted

    def open_partition(self, topic: Topic, number: int, *, at_rest: bool = False) -> Partition:
        """Open a partition that is not registered yet; runs on any thread.

        With `at_rest`, a cleanly closed partition whose only replica is on this node stays closed until it is used.
        Internal topics are opened immediately.
        """
        found = self._folder.find(topic.name)
        if found is None or found.topic_id != topic.topic_id:
            raise StorageFault(self._lost(topic.name))
        opener = self._folder.open_partition
        if self.cluster is not None:
            opened = opener(topic.name, number)
            return Partition(topic.name, topic.topic_id, number, opened, self.cluster, opener)
        told = self.assigned(topic, number)
        leads = told.assignment.leader == self.number
        may_rest = at_rest and leads and len(told.assignment.replicas) == 1 and not topic.observers
        is_internal = topic.name.startswith(INTERNAL_PREFIX)
        rest = self._folder.closed_partition_of(topic.name, number) if may_rest and not is_internal else None
        held, resumes = rest or opener(topic.name, number), told if leads else None
        hosted = Partition(topic.name, topic.topic_id, number, held, self._alone, opener, resumes=resumes)
        if not leads:
            hosted.step(self.assigned(topic, number, hosted.log.state.epochs.latest))
        return hosted

    def assigned(self, topic: Topic, number: int, epoch: int = 0) -> Assigned:
        """Return the assignment of a standalone node's partition.

        Its log may have newer epochs than the metadata, if the folder was used elsewhere.
        """
        known = topic.assignments[number]
        if epoch > known.leader_epoch:
            known = msgspec.structs.replace(known, leader_epoch=epoch)
        external = topic.observers if topic.holder else None
        return Assigned(known, self._alone.incarnations, topic.min_in_sync, external)

    def _lost(self, name: str) -> str:
        unreadable = "; ".join(f"topics/{each}: {why}" for each, why in self.broken.items())
        if unreadable:
            return f"the folder of topic {name!r} is not among those that can be read; see `braid log repair`: {unreadable}"
        accept = f"`braid topic delete {name}`, and create it again"
        if name.startswith(INTERNAL_PREFIX):
            accept = f"`braid log accept-loss DATA {name}`"
        return (
            f"the folder of topic {name!r} was made and is lost, with all its records: "
            f"stop the node and restore it from a backup, or accept the loss: {accept}"
        )

    def may_reset(self, name: str, number: int) -> bool:
        """Return whether a partition that cannot be opened may be resynced from other replicas.

        It may if its data is damaged, another node leads it, and the copy here is neither in sync nor eligible.
        """
        fault, topic = self.offline.get((name, number)), self.topics.get(name)
        found = self._folder.find(name)
        if fault is None or topic is None or found is None or found.topic_id != topic.topic_id:
            return False
        if self.cluster is None or self.cluster.incarnation is None or isinstance(fault.__cause__, OSError):
            return False
        known = topic.assignments[number]
        return known.leader not in (None, self.number) and self.number not in known.in_sync + known.eligible

    def reset_log(self, name: str, number: int) -> None:
        """Reset the log to an empty one; runs on a thread."""
        self._folder.reset_log(name, number)

    # -- changes, after they are durable ------------------------------------------------------------------------

    def put(self, topic: Topic) -> None:
        """Add a topic, or replace its description."""
        (self._hidden if is_hidden(topic.name) else self._topics)[topic.name] = topic

    def host(self, partitions: Iterable[Partition], faults: Iterable[NotOpened] = ()) -> None:
        """Register opened partitions, and the faults of those that could not be opened."""
        opened = list(partitions)
        for hosted in opened:
            place = hosted.topic, hosted.number
            assert place not in self._hosted, f"{hosted} is open already: two would write one log"
            self._hosted[place] = hosted
            self.offline.pop(place, None)
        self.offline.update({(topic, number): fault for topic, number, fault in faults})
        (self.cluster or self._alone).opened(opened)

    def take_offline(self, hosted: Partition, fault: StorageFault) -> None:
        """Take a closed partition offline that cannot be opened again; its waiters and later requests get the fault."""
        if self._hosted.pop((hosted.topic, hosted.number), None) is not None:
            self.offline[(hosted.topic, hosted.number)] = fault
            hosted.wake()

    def forget_faults(self, name: str) -> None:
        """Drop the recorded faults of a topic's partitions."""
        self.offline = {place: fault for place, fault in self.offline.items() if place[0] != name}

    def remove(self, name: str) -> list[Partition]:
        """Remove a topic and wake its waiters. Returns its registered partitions, for the caller to close."""
        gone = list(self.opened(name))
        del (self._hidden if name in self._hidden else self._topics)[name]
        self.forget_faults(name)
        for hosted in gone:
            del self._hosted[(name, hosted.number)]
            hosted.retire()
        return gone

    def release(self, name: str, numbers: Iterable[int]) -> list[Partition]:
        """Remove partitions that other nodes hold now. Returns those that are registered, for the caller to close."""
        gone = []
        for number in numbers:
            self.offline.pop((name, number), None)
            if (hosted := self._hosted.pop((name, number), None)) is not None:
                hosted.is_moved = True
                hosted.retire()
                gone.append(hosted)
        return gone

    def is_due(self, hosted: Partition, now_ms: int) -> bool:
        """Return whether `maintain_log` may have work to do."""
        return hosted.is_due(self.topics[hosted.topic].settings, now_ms)

    def maintain_log(self, hosted: Partition, now_ms: int) -> None:
        """Run retention and compaction on a thread. Opens a closed log, so check `is_due` first."""
        maintain_log(self._folder, hosted.open_log or hosted.log, now_ms, upto=hosted.high_watermark)

    def close(self) -> None:
        """Close all partitions. A server first closes them on threads (`closing.close_partitions`)."""
        for hosted in self._hosted.values():
            hosted.close()
        self._hosted.clear()
