"""What of a partition counts as committed when it is opened."""

from tests.broker.node import Node

from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.replication.messages import ExternalFetched


def followed() -> tuple[Node, Partition]:
    node = Node()
    node.create("a", 1, followers=["1", "2"])
    return node, node.services.hosting.partition("a", 0)


def test_a_follower_opens_with_the_watermark_that_was_kept() -> None:
    node, hosted = followed()
    hosted.tell(ExternalFetched("1", 0))
    node.append("a", b"x", b"y")
    assert (hosted.high_watermark, hosted.end_offset, hosted.log.watermark) == (0, 2, 0)
    hosted.tell(ExternalFetched("1", 1))
    assert hosted.log.watermark == 1
    hosted.log.checkpoint()
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    assert node.restarted().services.hosting.partition("a", 0).high_watermark == 1


def test_a_leader_counts_with_its_in_sync_set() -> None:
    node, hosted = followed()
    hosted.tell(ExternalFetched("1", 0))
    node.append("a", b"x", b"y")
    again = node.restarted().services.hosting.partition("a", 0)
    assert again.high_watermark == 2, "nobody else is in sync yet"


def test_the_common_end_is_that_of_the_slowest_replica_in_sync_or_not() -> None:
    node, hosted = followed()
    node.append("a", b"x", b"y")
    hosted.tell(ExternalFetched("1", 2))
    assert hosted.log.tombstone_limit == 0
    hosted.tell(ExternalFetched("2", 1))
    assert hosted.log.tombstone_limit == 1


def test_without_other_replicas_all_of_it_is_committed() -> None:
    node = Node()
    node.create("a", 1)
    node.append("a", b"x")
    hosted = node.restarted().services.hosting.partition("a", 0)
    assert (hosted.high_watermark, hosted.log.watermark, hosted.log.tombstone_limit) == (1, 1, 1)
