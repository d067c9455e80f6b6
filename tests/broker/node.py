"""A node's services over a simulated disk: started, killed, cut off from power and started again."""

from collections.abc import Callable, Sequence
from random import Random

from tests.model.manual_world import ManualWorld

from braidlog.broker.access.authorize import Authorize
from braidlog.broker.replica_moves import Removed
from braidlog.broker.services import Services, lone_node, open_services
from braidlog.codec.records import encode_batch
from braidlog.coordinator.holdings import Holdings
from braidlog.kv.settings import KeyValueSettings
from braidlog.model.settings import TopicSettings
from braidlog.partition.append import Acks
from braidlog.partition.internal_topic import InternalTopic
from braidlog.partition.partition import Partition
from braidlog.partition.replicated import summary_of
from braidlog.replication.ready import DropAbove
from braidlog.storage.folder import DataFolder
from braidlog.storage.partition import Appended, PartitionLog
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
        holdings: Holdings | None = None,
        stop_node: Callable[[], None] | None = None,
        member_removed: Removed | None = None,
    ) -> None:
        self.disk = disk or SimulatedDisk()
        self.clock = clock or ManualClock()
        self.world = ManualWorld(self.clock, rng=rng)
        self.run = self.world.run
        self.spawn = self.world.spawn
        self.folder = DataFolder(self.disk, "/data", self.clock)
        self.services: Services = open_services(
            self.folder,
            self.world,
            lone_node(self.folder, self.world, name)._replace(member_removed=member_removed),
            member_metadata=ConsumerMetadata(),
            defaults=defaults or TopicSettings(),
            authorize=Authorize({}, []),
            kv=kv,
            holdings=holdings,
            stop_node=stop_node,
        )

    def restarted(self, disk: SimulatedDisk | None = None) -> "Node":
        """The same node after kill -9, or (with a disk of `crash_states`) after a power cut."""
        return Node(disk or self.disk.after_kill(), self.clock)

    @property
    def journal_log(self) -> PartitionLog:
        """What the coordinator's journal is written to."""
        log = self.services.journal._log
        assert isinstance(log, InternalTopic)
        return log._log

    @property
    def journal_end(self) -> int:
        return self.journal_log.end_offset

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


def cut(hosted: Partition, offset: int) -> None:
    """As a follower's steps do when its leader has fewer records."""
    hosted.log.truncate(offset)
    hosted.replicated.replica = hosted.replicated.replica.now(log=summary_of(hosted.log), watermark=offset)
    hosted.outcome(DropAbove(offset))


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
