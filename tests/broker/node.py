"""A node's services over a simulated disk: started, killed, cut off from power and started again."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final, cast

from tests.model.manual_world import ManualRuntime

from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.broker.replica_moves import Removed
from braidlog.broker.services import Services, lone_node, open_services
from braidlog.codec.batch.records import encode_batch
from braidlog.coordinator.groups.service import Groups
from braidlog.coordinator.offsets import Offsets
from braidlog.coordinator.shards import STATE_TOPIC, shard_for_name
from braidlog.coordinator.state_limits import StateUsage
from braidlog.coordinator.transactions.named_producers import NamedProducers
from braidlog.coordinator.transactions.pending_commits import PendingCommits
from braidlog.coordinator.transactions.staged_batches import Staging
from braidlog.coordinator.transactions.transactions import Transactions
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.model.settings import TopicSettings
from braidlog.partition.opening import open_beside
from braidlog.partition.partition import Partition
from braidlog.partition.produce.append import Acks
from braidlog.partition.replica_runner import summary_of
from braidlog.replication.ready import DiscardAbove
from braidlog.security.authorization import Authorize
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.log.partition_log import Appended, PartitionLog
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk
from braidlog.wire.kafka.consumer import ConsumerMetadata


class Node:
    """`node.run(node.services.topics.create("a", 1))`"""

    def __init__(
        self,
        disk: SimulatedDisk | None = None,
        clock: ManualClock | None = None,
        *,
        rng: Random | None = None,
        name: str = "0",
        defaults: TopicSettings | None = None,
        kv: KeyValueSettings | None = None,
        holdings: StateUsage | None = None,
        stop_node: Callable[[], None] | None = None,
        member_removed: Removed | None = None,
    ) -> None:
        self.disk = disk or SimulatedDisk()
        self.clock = clock or ManualClock()
        self.runtime = ManualRuntime(self.clock, rng=rng)
        self.run = self.runtime.run
        self.spawn = self.runtime.spawn
        self.folder = DataFolder(self.disk, "/data", self.clock)
        self.services: Services = open_services(
            self.folder,
            self.runtime,
            lone_node(self.folder, self.runtime, name, lambda work, _: self.spawn(work))._replace(
                member_removed=member_removed
            ),
            member_metadata=ConsumerMetadata(),
            defaults=defaults or TopicSettings(),
            authorize=Authorize({}, []),
            kv=kv,
            holdings=holdings,
            stop_node=stop_node,
        )
        coordinators = self.services.coordinators
        coordinators._tend = _not_at_all  # type: ignore[method-assign, assignment]  # tests say when something expires
        self._open_shards()
        self.groups = cast("Groups", Spread(self, "groups"))
        self.offsets = cast("Offsets", Spread(self, "offsets"))
        self.transactions = cast("Transactions", Spread(self, "transactions"))
        self.staging = cast("Staging", Spread(self, "staging"))
        self.pending_commits = cast("PendingCommits", Spread(self, "pending_commits"))
        self.named_producers = cast("NamedProducers", Spread(self, "named_producers"))

    def _open_shards(self) -> None:
        """As a server does before it serves; other partitions are opened when they are asked for."""
        hosting = self.services.hosting
        if (topic := hosting.topics.get(STATE_TOPIC)) is not None and topic.holder:
            places = [(topic, number) for number in range(topic.partitions)]
            hosting.host(*self.run(open_beside(places, hosting, self.runtime)))
            self.run(self.services.coordinators.wait_read())

    def coordinator(self, name: str) -> Coordinator:
        """The one that keeps a name."""
        return self.run(self.services.coordinators.reach(name))

    def begin_shards(self) -> None:
        """Make the shards, and leave nothing on the disk that is not durable: a crash from here on is about what comes next."""
        self.run(self.services.coordinators.ensure_shards())
        log = self.services.metadata._store._log  # type: ignore[attr-defined]  # a lone node's
        log.sync()

    def restarted(self, disk: SimulatedDisk | None = None) -> "Node":
        """The same node after kill -9, or (with a disk of `crash_states`) after a power cut."""
        return Node(disk or self.disk.after_kill(), self.clock)

    def shard_log(self, name: str) -> PartitionLog:
        """The log in which a name is kept."""
        self.coordinator(name)
        hosted = self.services.hosting.hosted(STATE_TOPIC, shard_for_name(name))
        assert hosted is not None
        return hosted.log

    @property
    def state_entries(self) -> int:
        """How many entries coordinators have written."""
        return sum(each.end_offset for each in self.services.hosting.opened(STATE_TOPIC))

    # -- short words for long calls --------------------------------------------------------------------------

    def create(self, topic: str, partitions: int = 1, **more: object) -> None:
        self.run(self.services.topics.create(topic, partitions, **more))  # type: ignore[arg-type]

    def append(self, topic: str, *values: bytes, partition: int = 0, acks: Acks = Acks.LEADER) -> Appended:
        return self.run(self.services.append.append(topic, partition, batch_of(*values), acks=acks))

    def values(self, topic: str, partition: int = 0, *, committed_only: bool = True) -> list[bytes | None]:
        """All values a reader sees from the start."""
        hosted = self.services.hosting.partition(topic, partition)
        found: list[bytes | None] = []
        offset = hosted.start_offset
        while True:
            got = self.run(
                self.services.fetch.records(topic, partition, offset, bytes_max=1 << 20, committed_only=committed_only)
            )
            if not got.records:
                return found
            found += [record.value for record in got.records]
            offset = got.next_offset


async def _not_at_all(*_: object) -> None:
    pass


def node_with(**topics: int) -> Node:
    """With topics of so many partitions, and the coordinators' shards."""
    made = Node()
    for topic, partitions in topics.items():
        made.create(topic, partitions)
    made.begin_shards()
    return made


class Spread:
    """One service of all coordinators of a node: what is asked about a name, of the one that keeps it; the rest, of all."""

    LISTS: Final = frozenset(("names", "known", "groups", "open_names"))
    UPKEEP: Final = frozenset(("expire", "forget_unused", "resume", "topic_changed"))
    PARTS: Final = ("classic", "consumer")

    __slots__ = ("_node", "_path")

    def __init__(self, node: Node, *path: str) -> None:
        self._node = node
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{name} is of one coordinator: ask `node.coordinator(name)` for it")
        if name in self.PARTS:
            return Spread(self._node, *self._path, name)
        if name in self.UPKEEP:
            return partial(self._keep_up, name)
        return partial(self._list if name in self.LISTS else self._ask, name)

    def _method(self, coordinator: Coordinator, name: str) -> Any:
        found: Any = coordinator
        for each in (*self._path, name):
            found = getattr(found, each)
        return found

    def _ask(self, method: str, name: str, *more: Any, **named: Any) -> Any:
        return self._method(self._node.coordinator(name), method)(name, *more, **named)

    def _list(self, method: str) -> Any:
        found = [self._method(each, method)() for each in self._node.services.coordinators.local_coordinators()]
        return set().union(*found) if method == "groups" else sorted(name for names in found for name in names)

    async def _keep_up(self, method: str, *more: Any) -> Any:
        found = [
            await self._method(each, method)(*more) for each in self._node.services.coordinators.local_coordinators()
        ]
        if all(isinstance(each, dict) for each in found):
            return {key: value for each in found for key, value in each.items()}
        return sorted(name for names in found for name in names or ())


def cut(hosted: Partition, offset: int) -> None:
    """As a follower's steps do when its leader has fewer records."""
    hosted.log.truncate(offset)
    hosted.replicated.replica = hosted.replicated.replica.now(log=summary_of(hosted.log), watermark=offset)
    hosted.outcome(DiscardAbove(offset))


def batch_of(
    *values: bytes,
    keys: Sequence[bytes | None] | None = None,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
    time_ms: int = 1_700_000_000_000,
) -> bytes:
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    return encode_batch(
        list(values),
        keys=keys,
        base_timestamp=time_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
