"""The topics and partitions that this node hosts: from a name and a number to the partition that serves it.

Knows: which topics there are, how many partitions each has, and which of them are open. Refuses to know: who may create, change
or delete one (`broker/topics.py`), and records.
Invariants: internal topics (their names begin with two underscores) are not there for any request, also if all nodes of a cluster
hold them, but for the published ones, which anyone may read and only the broker writes; a partition is opened once.
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
"""Internal topics that are there for readers: the broker alone writes them."""


def is_hidden(name: str) -> bool:
    """Whether a topic is the broker's own and nobody else's to see."""
    return name.startswith(INTERNAL_PREFIX) and name not in PUBLISHED


def is_nodes_own(topic: Topic) -> bool:
    """Whether this is a lone node's topic of the broker's own: the folder remembers that it was made, and `braid log accept-loss`
    lets it be made again."""
    return bool(topic.holder) and topic.name.startswith(INTERNAL_PREFIX)


def is_own(name: str) -> bool:
    """Whether a topic is a node's own: the metadata does not know it."""
    return name == METADATA_TOPIC


def refuse_internal(name: str) -> None:
    """Refuse a request to make, change or delete a topic of the broker's own."""
    if name.startswith(INTERNAL_PREFIX):
        raise BrokerError(Reason.INVALID_TOPIC_NAME, f"names that begin with {INTERNAL_PREFIX!r} are the broker's own")


def refuse_published(name: str) -> None:
    """Refuse a request that would change what is in a topic of the broker's own."""
    if name in PUBLISHED:
        refuse_internal(name)


class NotOpened(NamedTuple):
    topic: str
    number: int
    fault: StorageFault


class PartitionRegistry:
    """What this node hosts, by name, by id and by partition."""

    def __init__(
        self, folder: DataFolder, node: str, runtime: Runtime, cluster: PartitionContext | None = None
    ) -> None:
        """`cluster`: the node around partitions that several nodes hold; None on a node that is alone."""
        self._folder = folder
        self._topics: dict[str, Topic] = {}
        self._hidden: dict[str, Topic] = {}
        self.topics: Mapping[str, Topic] = ChainMap(self._topics, self._hidden)
        """All of them, also those that are not there for any request."""
        self._hosted: dict[tuple[str, int], Partition] = {}
        self.offline: dict[tuple[str, int], StorageFault] = {}
        """Partitions that could not be opened, and why."""
        self._names_by_id: dict[str, str] = {}
        self.tables: dict[str, TableState] = {}
        """Of topics that are tables, by their ids: how each table is, as was heard last."""
        self.quarantined = {"damaged": 0, "stray": 0}
        """Copies and topics, as they were last counted."""
        self.node = node
        self.number = own_number(node)
        self._alone = StandaloneContext(node, self.number, runtime)
        self.cluster = cluster

    @property
    def data_dir(self) -> str:
        return self._folder.path

    @property
    def cluster_id(self) -> str:
        """The id of the cluster whose metadata the folder follows, in hex; of its own metadata the id of their log, which a
        back-up of the folder keeps."""
        return self._folder.identity.cluster or self._folder.topic(METADATA_TOPIC).topic_id

    @property
    def broken(self) -> Mapping[str, str]:
        """Folders of topics that could not be read when the node was started, and why."""
        return self._folder.broken_topics

    @property
    def listeners(self) -> Listeners:
        """Which topics' partitions are watched as this node begins and ends to lead them."""
        return (self.cluster or self._alone).listeners

    def count_set_aside(self) -> None:
        """On a thread: count what is put out of the way in this folder. A person removes it while the node runs."""
        found = find_quarantined(self._folder.disk, self._folder.path)
        self.quarantined = {"damaged": len(found.damaged), "stray": len(found.strays)}

    # -- topics ----------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The users' topics, sorted."""
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
        """How many partitions a topic has: none, if it is not there."""
        meta = self._topics.get(name)
        return 0 if meta is None else meta.partitions

    def checks_schemas(self, name: str) -> bool:
        """Whether values of a topic must name schemas."""
        meta = self._topics.get(name)
        return meta is not None and meta.settings.value_schema_check

    def name_of(self, topic_id: str) -> str | None:
        """The topic that has this id."""
        name = self._names_by_id.get(topic_id)
        found = None if name is None else self._topics.get(name) or self._hidden.get(name)
        if found is None or found.topic_id != topic_id:
            self._names_by_id = {meta.topic_id: meta.name for meta in self.topics.values()}
            name = self._names_by_id.get(topic_id)
        return name

    # -- partitions ------------------------------------------------------------------------------------------

    def check_partition(self, name: str, number: int) -> Topic:
        """Refuse a partition that is not there."""
        meta = self.meta(name)
        if not 0 <= number < meta.partitions:
            raise BrokerError(
                Reason.PARTITION_NOT_FOUND,
                f"topic {name!r} has partitions 0 to {meta.partitions - 1}, not {number}",
            )
        return meta

    def partition(self, name: str, number: int) -> Partition:
        """The hosted partition, found since its creation or the node's start. One that could not be opened says why, and is tried
        again beside the loop (`opening.retry`)."""
        hosted = self._hosted.get((name, number))
        if hosted is None or name in self._hidden:
            meta = self.check_partition(name, number)
            if (fault := self.offline.get((name, number))) is not None:
                raise fault.again()
            self.require_held(meta, number)
            hosted = self._hosted[(name, number)] = self.open_partition(meta, number)
        return hosted

    def holds(self, topic: Topic, number: int) -> bool:
        """Whether this node has a replica of a partition: of a topic that it has alone it has all."""
        return bool(topic.holder) or self.number in topic.assignments[number].replicas

    def require_held(self, topic: Topic, number: int) -> None:
        if not self.holds(topic, number):
            nodes = ", ".join(map(str, topic.assignments[number].replicas))
            raise NotLeaderError(
                topic.name, number, f"node {self.number} has no replica of {topic.name}/{number}: ask nodes {nodes}"
            )

    def partitions(self, name: str) -> list[Partition]:
        """Those of a topic that this node has."""
        meta = self.meta(name)
        return [self.partition(name, number) for number in range(meta.partitions) if self.holds(meta, number)]

    def sole_partition(self, name: str) -> Partition:
        """The partition of a topic that has one: for dialects that know no partitions."""
        self.check_sole_partition(name)
        return self.partition(name, 0)

    def check_sole_partition(self, name: str) -> None:
        """It need not be here."""
        partitions = self.meta(name).partitions
        if partitions != 1:
            raise BrokerError(
                Reason.INVALID_PARTITION_COUNT,
                f"topic {name!r} has {partitions} partitions; this protocol knows none, and serves topics of one",
            )

    def hosted(self, name: str, number: int) -> Partition | None:
        """The partition if it is open: who only looks opens nothing."""
        return self._hosted.get((name, number))

    def opened(self, name: str | None = None) -> Iterator[Partition]:
        """The partitions that could be opened, of one topic or of all; the logs of some may be closed for now."""
        if name is None:
            yield from list(self._hosted.values())
            return
        topic = self.topics.get(name)
        for number in range(0 if topic is None else topic.partitions):
            if (hosted := self._hosted.get((name, number))) is not None:
                yield hosted

    def open_partition(self, topic: Topic, number: int, *, at_rest: bool = False) -> Partition:
        """Open a partition that nobody finds yet; may run on any thread. With `at_rest`, one that was closed cleanly and of which
        this node has the only replica stays closed until it is used; the node's own are used at once."""
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
        """The assignment of a partition of a lone node. Its log may have epochs that the metadata does not: that of a folder
        that was used elsewhere."""
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
        """Whether a partition that cannot be opened here can be copied from others: it is its data that is wrong, somebody else
        leads, and no set counts on this copy."""
        fault, topic = self.offline.get((name, number)), self.topics.get(name)
        found = self._folder.find(name)
        if fault is None or topic is None or found is None or found.topic_id != topic.topic_id:
            return False
        if self.cluster is None or self.cluster.incarnation is None or isinstance(fault.__cause__, OSError):
            return False
        known = topic.assignments[number]
        return known.leader not in (None, self.number) and self.number not in known.in_sync + known.eligible

    def reset_log(self, name: str, number: int) -> None:
        """On a thread."""
        self._folder.reset_log(name, number)

    # -- changes, after they are durable -----------------------------------------------------------------------

    def put(self, topic: Topic) -> None:
        """A topic is there, or is another than before."""
        (self._hidden if is_hidden(topic.name) else self._topics)[topic.name] = topic

    def host(self, partitions: Iterable[Partition], faults: Iterable[NotOpened] = ()) -> None:
        """Partitions were opened, and others could not be: from now on they are found, or say why not."""
        opened = list(partitions)
        for hosted in opened:
            place = hosted.topic, hosted.number
            assert place not in self._hosted, f"{hosted} is open already: two would write one log"
            self._hosted[place] = hosted
            self.offline.pop(place, None)
        self.offline.update({(topic, number): fault for topic, number, fault in faults})
        (self.cluster or self._alone).opened(opened)

    def take_offline(self, hosted: Partition, fault: StorageFault) -> None:
        """A partition that was closed cannot be opened again: whoever asks for it, or waits for it, is told why."""
        if self._hosted.pop((hosted.topic, hosted.number), None) is not None:
            self.offline[(hosted.topic, hosted.number)] = fault
            hosted.wake()

    def forget_faults(self, name: str) -> None:
        """Why partitions of a topic could not be opened is of the past."""
        self.offline = {place: fault for place, fault in self.offline.items() if place[0] != name}

    def remove(self, name: str) -> list[Partition]:
        """A topic is there no more: nobody finds it, who waits for it is told. Returns what is open of it, to be closed."""
        gone = list(self.opened(name))
        del (self._hidden if name in self._hidden else self._topics)[name]
        self.forget_faults(name)
        for hosted in gone:
            del self._hosted[(name, hosted.number)]
            hosted.retire()
        return gone

    def release(self, name: str, numbers: Iterable[int]) -> list[Partition]:
        """Partitions of a topic are held by others now. Returns what is open of them, to be closed."""
        gone = []
        for number in numbers:
            self.offline.pop((name, number), None)
            if (hosted := self._hosted.pop((name, number), None)) is not None:
                hosted.is_moved = True
                hosted.retire()
                gone.append(hosted)
        return gone

    def is_due(self, hosted: Partition, now_ms: int) -> bool:
        """Whether `maintain_log` may find something to do."""
        return hosted.is_due(self.topics[hosted.topic].settings, now_ms)

    def maintain_log(self, hosted: Partition, now_ms: int) -> None:
        """On a thread: let go what may go. A log that is closed is opened: ask `is_due` before."""
        maintain_log(self._folder, hosted.open_log or hosted.log, now_ms, upto=hosted.high_watermark)

    def close(self) -> None:
        """Close what is open; a server does that beside the loop before (`closing.close_partitions`)."""
        for hosted in self._hosted.values():
            hosted.close()
        self._hosted.clear()
