"""What of a partition counts as committed when it is opened."""

from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.model.errors import Reason
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.replication.messages import ExternalFetched


def followed() -> tuple[Node, Partition]:
    node = Node()
    node.create("a", 1, followers=["1", "2"])
    return node, node.services.hosting.partition("a", 0)


def test_a_follower_opens_with_the_watermark_that_was_kept() -> None:
    node, hosted = followed()
    hosted.step(ExternalFetched("1", 0))
    node.append("a", b"x", b"y")
    assert (hosted.high_watermark, hosted.end_offset, hosted.log.watermark) == (0, 2, 0)
    hosted.step(ExternalFetched("1", 1))
    assert hosted.log.watermark == 1
    hosted.log.checkpoint()
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    assert node.restarted().services.hosting.partition("a", 0).high_watermark == 1


def test_a_leader_counts_with_its_in_sync_set() -> None:
    node, hosted = followed()
    hosted.step(ExternalFetched("1", 0))
    node.append("a", b"x", b"y")
    again = node.restarted().services.hosting.partition("a", 0)
    assert again.high_watermark == 2, "nobody else is in sync yet"


def test_the_common_end_is_that_of_the_slowest_replica_in_sync_or_not() -> None:
    node, hosted = followed()
    node.append("a", b"x", b"y")
    hosted.step(ExternalFetched("1", 2))
    assert hosted.log.tombstone_limit == 0
    hosted.step(ExternalFetched("2", 1))
    assert hosted.log.tombstone_limit == 1


def test_without_other_replicas_all_of_it_is_committed() -> None:
    node = Node()
    node.create("a", 1)
    node.append("a", b"x")
    hosted = node.restarted().services.hosting.partition("a", 0)
    assert (hosted.high_watermark, hosted.log.watermark, hosted.log.tombstone_limit) == (1, 1, 1)


def test_a_closed_log_has_no_followers_and_is_opened_when_it_gets_some() -> None:
    node = Node()
    node.create("a", 1)
    node.append("a", b"x")
    hosted = node.services.hosting.partition("a", 0)
    hosted.begin_close()
    assert hosted.finish_close()
    with refused_with(Reason.REPLICA_NOT_FOUND):
        hosted.step(ExternalFetched("1", 1))
    assert (hosted.high_watermark, hosted.replicas.in_sync) == (1, ["0"])
    node.run(node.services.placement.set_followers("a", ["1"], 1))
    assert hosted.is_open
    hosted.step(ExternalFetched("1", 1))
    assert hosted.replicas.in_sync == ["0", "1"]
    node.append("a", b"y")
    assert hosted.high_watermark == 1, "the follower does not have it yet"
    assert not hosted.may_close


def test_a_closed_log_is_led_on_and_follows_a_change_of_its_role() -> None:
    node = Node()
    node.create("a", 1)
    node.append("a", b"x")
    hosted = node.services.hosting.partition("a", 0)
    hosted.begin_close()
    assert hosted.finish_close()
    for role in (Role.FOLLOWER, Role.LEADER):
        node.run(node.services.placement.set_role("a", 0, role))
        assert (hosted.role, hosted.high_watermark) == (role, 1)
        assert hosted.may_close is (role is Role.LEADER)
    node.append("a", b"y")
    assert node.values("a") == [b"x", b"y"]
