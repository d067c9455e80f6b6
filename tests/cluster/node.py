"""The metadata of one node over a simulated disk, and the front ends that change it: no journal, no key-value store."""

from tests.model.manual_world import ManualRuntime

from braidlog.broker.brokers import Brokers
from braidlog.broker.topic_placement import Placement
from braidlog.broker.topics import Topics
from braidlog.cluster.metadata.local_store import SNAPSHOT_EVERY, LocalStore
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.codec.batch.records import encode_batch
from braidlog.coordinator.transactions.producer_ids import ProducerIds
from braidlog.model.settings import TopicSettings
from braidlog.partition.internal.internal_topic import open_metadata
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.partition.reconciler import Reconciler
from braidlog.security.authorization import Authorize, Operation, Rule
from braidlog.security.rule_changes import Rules
from braidlog.security.users import Users
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk


class MetadataNode:
    """`node.run(node.topics.create("a", 1))`"""

    def __init__(self, disk: SimulatedDisk | None = None, *, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self.disk = disk or SimulatedDisk()
        self.snapshot_every = snapshot_every
        clock = ManualClock()
        self.runtime = ManualRuntime(clock)
        self.run = self.runtime.run
        self.folder = DataFolder(self.disk, "/data", clock)
        self.store: LocalStore = open_metadata(self.folder, self.runtime, node="0", snapshot_every=snapshot_every)
        self.metadata = Metadata(self.store, self.runtime)
        self.hosting = PartitionRegistry(self.folder, "0", self.runtime)
        self.reconciler = Reconciler(self.metadata, self.folder, self.hosting, self.runtime)
        self.topics = Topics(self.reconciler, self.hosting, self.runtime, TopicSettings())
        self.placement = Placement(self.metadata, self.reconciler, self.hosting, self.runtime)
        self.users = Users(self.metadata, self.runtime)
        self.rules = Rules(self.metadata, Authorize({}, [Rule("root", [Operation.ALL])]))
        self.brokers = Brokers(self.metadata, self.runtime, "0")
        self.producer_ids = ProducerIds(self.metadata, self.runtime)

    def restarted(self, disk: SimulatedDisk | None = None) -> "MetadataNode":
        """The same node after kill -9, or (with a disk of `crash_states`) after a power cut."""
        return MetadataNode(disk or self.disk.after_kill(), snapshot_every=self.snapshot_every)

    def write(self, topic: str, value: bytes) -> None:
        """A durable record in a topic's first partition."""
        log = self.hosting.partition(topic, 0).log
        log.append(encode_batch([value], base_timestamp=1), now_ms=1)
        log.sync()
