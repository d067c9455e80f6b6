"""When another node is asked, how often, and what a client hears when it cannot be."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.broker.node import Node
from tests.broker.three_nodes import TOPIC, assign, three_nodes
from tests.refusals import refused_with

from braidlog.broker.cluster_report import cluster_report
from braidlog.broker.forwarding import HOLD_SECONDS, LOOK_SECONDS, Call
from braidlog.cluster.metadata import events as e
from braidlog.model.errors import (
    BrokerError,
    ElsewhereError,
    NotCoordinatorError,
    NothingDoneError,
    NotLeaderError,
    Reason,
)
from braidlog.model.reporting.metrics import TABLE
from braidlog.model.reporting.node_report import EtcdReport
from braidlog.server.adapters import make_adapter

WRITE = Call("rustlog", "alice", b"body")
READ = Call("rustlog", "alice", b"body", wait_seconds=3.0, changes=False)
REFUSED = NotLeaderError(TOPIC, 0, "not here")
NOT_DONE = NothingDoneError(Reason.NOT_LEADER, "not here either")
UNKNOWN = BrokerError(Reason.TIMED_OUT, "no answer")

LOOK_MS = round(LOOK_SECONDS * 1000)


class Others:
    """The other nodes: they answer as they were told to, one after the other; what is done meanwhile is done first."""

    def __init__(self, node: Node, *answers: bytes | BrokerError, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._answers = list(answers)
        self._meanwhile = meanwhile
        self.asked: list[int] = []
        self.waits: list[float] = []
        node.services.forwarding.calls = self

    async def call(self, node: int, call: Call, seconds: float) -> bytes:
        assert call.body == b"body"
        self.asked.append(node)
        self.waits.append(seconds)
        self._meanwhile()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, bytes):
            return answer
        raise answer


def forwarded(node: Node, call: Call = WRITE, refusal: ElsewhereError = REFUSED) -> object:
    async def here() -> str:
        node.services.hosting.partition(TOPIC, 0).require_leader()
        return "here"

    job = node.spawn(node.services.forwarding.forward(call, refusal, here))
    for _ in range(200):
        if not job.is_done:
            node.runtime.advance(LOOK_MS)
    return job.result()


def test_the_leader_is_asked_and_counted() -> None:
    node = three_nodes(leader=3)
    others = Others(node, b"done")
    assert forwarded(node) == forwarded(node, READ) == b"done"
    assert others.asked == [3, 3]
    assert others.waits == [10.0, 13.0]
    services = node.services
    make_adapter("rustlog", services)
    report = node.run(
        cluster_report(services.metadata, services.routing, services.hosting, services.forwarding, EtcdReport())
    )
    assert [each.coordinates for each in report.nodes] == [16, 0, 0]
    assert report.forwarded == [
        ("key-counts", 1, 0), ("key-counts", 2, 0), ("key-counts", 3, 0),
        ("leads", 1, 0), ("leads", 2, 0), ("leads", 3, 0),
        ("named-producer", 1, 0), ("named-producer", 2, 0), ("named-producer", 3, 0),
        ("rustlog", 1, 0), ("rustlog", 2, 0), ("rustlog", 3, 2),
        ("schema-log", 1, 0), ("schema-log", 2, 0), ("schema-log", 3, 0),
        ("snapshot", 1, 0), ("snapshot", 2, 0), ("snapshot", 3, 0),
        ("transaction-check", 1, 0), ("transaction-check", 2, 0), ("transaction-check", 3, 0),
        ("transaction-markers", 1, 0), ("transaction-markers", 2, 0), ("transaction-markers", 3, 0),
    ]  # fmt: skip
    (row,) = [each for each in TABLE if each.name == "braidlog_cluster_forwarded_total"]
    assert (("rustlog", "3"), 2) in list(row.rows(cast("Any", SimpleNamespace(cluster=report))))


def test_who_refuses_is_asked_again_and_the_next_leader_instead_of_it() -> None:
    node = three_nodes(leader=3)
    others = Others(node, NOT_DONE, b"done", meanwhile=lambda: assign(node, 1))
    assert forwarded(node) == b"done"
    assert others.asked == [3, 1]


def test_a_request_is_held_until_somebody_leads_and_this_node_may_be_it() -> None:
    node = three_nodes(leader=None)
    Others(node, b"never asked")

    async def here() -> str:
        return "here"

    job = node.spawn(node.services.forwarding.forward(WRITE, REFUSED, here))
    node.runtime.advance(LOOK_MS)
    assert not job.is_done
    assign(node, 2)
    node.runtime.advance(2 * LOOK_MS)
    assert job.result() == "here"


@pytest.mark.parametrize("leader", [None, 3])
def test_what_nobody_serves_in_time_is_refused_as_not_done(leader: int | None) -> None:
    node = three_nodes(leader=leader)
    Others(node, NOT_DONE)
    before = node.clock.monotonic()
    with pytest.raises(NotLeaderError, match="nothing was done, try again"):
        forwarded(node)
    assert node.clock.monotonic() - before >= HOLD_SECONDS


def test_what_may_have_been_done_is_never_asked_again_but_reading_is() -> None:
    node = three_nodes(leader=3)
    others = Others(node, UNKNOWN, b"twice")
    with pytest.raises(BrokerError, match="no answer"):
        forwarded(node)
    assert others.asked == [3]
    others = Others(node, UNKNOWN, b"read")
    assert forwarded(node, READ) == b"read"
    assert others.asked == [3, 3]


def test_a_fenced_node_is_not_asked() -> None:
    """It may hang: then it accepts connections, and each question waits for as long as it may."""
    node = three_nodes()
    others = Others(node, b"answer")
    assert node.run(node.services.forwarding.ask(3, WRITE)) == b"answer"
    node.services.metadata.change_exclusively([e.FenceNode(node=3, incarnation=1)])
    with pytest.raises(NothingDoneError, match="node 3 is not alive"):
        node.run(node.services.forwarding.ask(3, WRITE))
    assert others.asked == [3]


def gone(node: Node) -> None:
    if node.services.hosting.exists(TOPIC):
        topic_id = node.services.hosting.meta(TOPIC).topic_id
        node.services.metadata.change_exclusively([e.DeleteTopic(topic=TOPIC, topic_id=topic_id, deleted_ms=0)])
        node.spawn(node.services.reconciler.apply_metadata())


def test_of_a_topic_that_has_gone_meanwhile_this_node_says_so() -> None:
    node = three_nodes(leader=3)
    Others(node, NOT_DONE, meanwhile=lambda: gone(node))
    with refused_with(Reason.TOPIC_NOT_FOUND):
        forwarded(node)


@pytest.mark.parametrize("reason", [Reason.TOPIC_NOT_FOUND, Reason.PARTITION_NOT_FOUND])
@pytest.mark.parametrize(("topic", "is_held"), [("absent", False), (TOPIC, True)])
def test_what_a_coordinator_does_not_know_is_not_found(reason: Reason, topic: str, is_held: bool) -> None:
    """Held where this node knows the topic: the coordinator may hear of it a moment later."""
    node = three_nodes()
    others = Others(node, NothingDoneError(reason, "no such thing"))
    before = node.clock.monotonic()
    with refused_with(reason, match=r"^no such thing$"):
        forwarded(node, WRITE._replace(topic=topic), NotCoordinatorError(1, "not here"))
    assert (node.clock.monotonic() - before >= HOLD_SECONDS, len(others.asked) > 1) == (is_held, is_held)


def test_a_leader_that_has_not_heard_of_its_topic_is_asked_again() -> None:
    node = three_nodes(leader=3)
    Others(node, NothingDoneError(Reason.TOPIC_NOT_FOUND, "no such thing"))
    with pytest.raises(NotLeaderError, match="nothing was done, try again"):
        forwarded(node)


def test_a_node_that_is_alone_asks_nobody() -> None:
    node = Node()
    with pytest.raises(NothingDoneError):
        node.run(node.services.forwarding.ask(3, WRITE))
