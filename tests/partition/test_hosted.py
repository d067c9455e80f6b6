"""What of a partition counts as committed when it is opened."""

from tests.broker.node import Node

from braidlog.partition.hosted import HostedPartition, Role
from braidlog.replication.replicas import ReplicaFetched
from braidlog.storage.folder import DataFolder


def replicated() -> tuple[Node, HostedPartition]:
    node = Node()
    node.create("a", 1, followers=["1", "2"])
    return node, node.services.hosting.partition("a", 0)


def opened_as(role: Role, node: Node, hosted: HostedPartition) -> HostedPartition:
    """The same log, opened after a kill by a node that leads or follows."""
    log = DataFolder(node.disk.after_kill(), "/data", node.clock).open_partition("a", 0)
    return HostedPartition("a", 0, log, type(hosted.replicas)("0", ["1", "2"]), hosted._open, role=role, epoch=0)


def test_a_follower_opens_with_the_watermark_that_was_kept() -> None:
    node, hosted = replicated()
    hosted.step(ReplicaFetched("1", 0), 0)
    node.append("a", b"x", b"y")
    assert (hosted.high_watermark, hosted.end_offset) == (0, 2)
    assert hosted.log.watermark == 0
    assert opened_as(Role.FOLLOWER, node, hosted).high_watermark == 0
    hosted.step(ReplicaFetched("1", 1), 0)
    assert hosted.log.watermark == 1
    hosted.log.checkpoint()
    assert opened_as(Role.FOLLOWER, node, hosted).high_watermark == 1


def test_a_leader_counts_with_its_in_sync_set() -> None:
    node, hosted = replicated()
    node.append("a", b"x", b"y")
    assert opened_as(Role.LEADER, node, hosted).high_watermark == 2, "nobody else is in sync yet"


def test_the_common_end_is_that_of_the_slowest_replica_in_sync_or_not() -> None:
    node, hosted = replicated()
    node.append("a", b"x", b"y")
    hosted.step(ReplicaFetched("1", 2), 0)
    assert hosted.log.tombstone_limit == 0
    hosted.step(ReplicaFetched("2", 1), 0)
    assert hosted.log.tombstone_limit == 1


def test_without_other_replicas_all_of_it_is_committed() -> None:
    node = Node()
    node.create("a", 1)
    node.append("a", b"x")
    hosted = node.restarted().services.hosting.partition("a", 0)
    assert (hosted.high_watermark, hosted.log.watermark, hosted.log.tombstone_limit) == (1, 1, 1)
