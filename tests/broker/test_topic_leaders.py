"""A topic is acknowledged when its leaders serve it: each says so itself, or is waited for, for a while."""

import msgspec
from tests.broker.node import Node
from tests.broker.three_nodes import TOPIC, registered, three_nodes
from tests.refusals import refused_with

from braidlog.broker.forwarding import Call
from braidlog.broker.topic_leaders import CALL, SERVED_SECONDS_MAX, Led
from braidlog.broker.topics import Placed
from braidlog.cluster.metadata.events import FenceNode
from braidlog.model.errors import Reason
from braidlog.partition.hosted_log import Role

BOUND_MS = int(SERVED_SECONDS_MAX * 1000)


class Others:
    """Nodes 1 and 3. Those that are `late` answer, and do not serve yet."""

    def __init__(self, node: Node, *late: int) -> None:
        self.late, self.asked = {*late}, dict[int, Led]()
        node.services.forwarding.calls = self

    async def call(self, node: int, call: Call, _: float) -> bytes:
        assert call.name == CALL
        self.asked[node] = msgspec.msgpack.decode(call.body, type=Led)
        return b"" if node in self.late else b"1"


def test_a_topic_is_acknowledged_once_every_leader_serves_it() -> None:
    node = three_nodes()
    others = Others(node, 1, 3)
    job = node.spawn(node.services.topics.create("new", 6))
    node.runtime.advance(100)
    others.late.discard(1)
    node.runtime.advance(100)
    assert not job.is_done
    others.late.discard(3)
    node.runtime.advance(300)
    topic = job.result()
    assert others.asked == dict.fromkeys((1, 3), (topic.topic_id, 2))
    node.run(node.services.topics.grow("new", 9))
    assert others.asked[3] == (topic.topic_id, 3)


def test_leaders_that_do_not_serve_are_waited_for_for_a_while() -> None:
    node = three_nodes()
    Others(node, 1)
    job = node.spawn(node.services.topics.create("new", 1, placed=Placed(nodes=((1, 3),))))
    node.runtime.advance(BOUND_MS - 1)
    assert not job.is_done
    node.runtime.advance(1)
    assert job.result().name == "new"


def test_followers_are_waited_for_while_they_are_live() -> None:
    node = three_nodes()
    others = Others(node, 1, 3)
    job = node.spawn(node.services.topics.create("new", 1, placed=Placed(nodes=((2, 1, 3),))))
    node.runtime.advance(300)
    others.late.discard(1)
    node.runtime.advance(300)
    assert not job.is_done
    node.services.metadata.change_exclusively([FenceNode(node=3, incarnation=1)])
    node.runtime.advance(300)
    topic = job.result()
    assert others.asked == dict.fromkeys((1, 3), (topic.topic_id, 0))


def test_a_node_answers_whether_it_serves_what_it_leads() -> None:
    node = three_nodes(leader=2)
    leaders, topic = node.services.topic_leaders, node.services.metadata.image.topics[TOPIC]
    hosted = node.services.hosting.partition(TOPIC, 0)

    def answer(led: Led) -> bytes:
        return node.run(leaders.handle_call(msgspec.msgpack.encode(led)))

    hosted.role = Role.FOLLOWER
    assert not answer((topic.topic_id, 1)), "the metadata says so, and it has not begun"
    hosted.role = Role.LEADER
    assert answer((topic.topic_id, 1))
    assert not answer((topic.topic_id, 2)), "the other node knows of more than this one"
    assert not answer(("ab" * 16, 1))
    with refused_with(Reason.INVALID_RECORD):
        node.run(leaders.handle_call(b"no row"))


def test_a_topic_that_is_deleted_meanwhile_is_not_waited_for() -> None:
    node = three_nodes(leader=3)
    node.services.metadata.change_exclusively([registered(1, 2)])
    Others(node, 3)
    job = node.spawn(node.services.topic_leaders.wait(TOPIC))
    assert not job.is_done
    node.run(node.services.topics.delete(TOPIC))
    node.runtime.advance(300)
    assert job.is_done
