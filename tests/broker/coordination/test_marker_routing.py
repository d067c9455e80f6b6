"""Markers find the leaders of their partitions: one request for each node, again after a leader has moved."""

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from tests.broker.node import Node
from tests.broker.three_nodes import TOPIC, assign, three_nodes
from tests.refusals import refused_with

from braidlog.broker.coordination.marker_routing import CALL, HOLD_SECONDS
from braidlog.broker.forwarding import LOOK_SECONDS, Call
from braidlog.cluster.metadata import events as e
from braidlog.coordinator.transactions.markers import End, Failures
from braidlog.model.errors import BrokerError, Reason

LOOK_MS = round(LOOK_SECONDS * 1000)
MOVED = (Reason.NOT_LEADER.name, "not here")


class Others:
    """The other nodes: they refuse what `refuse` says, and note what they are asked."""

    def __init__(self, node: Node, refuse: Callable[[int, str, int], tuple[str, str] | None]) -> None:
        self._refuse = refuse
        self.asked: list[tuple[int, list[End]]] = []
        self.silent: set[int] = set()
        node.services.forwarding.calls = self
        node.services.hosting.cluster = cast("Any", SimpleNamespace(spawn=self._spawn, follow=lambda: None))
        self._node = node

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> object:
        assert name
        return self._node.spawn(work)

    async def call(self, node: int, call: Call, seconds: float) -> bytes:
        assert call.name == CALL
        assert seconds
        ends = msgspec.msgpack.decode(call.body, type=list[End])
        self.asked.append((node, ends))
        if node in self.silent:
            raise BrokerError(Reason.TIMED_OUT, "no answer")
        refused = [(*place, self._refuse(node, *place)) for end in ends for place in end.places]
        return msgspec.msgpack.encode([((topic, number), *why) for topic, number, why in refused if why])


def ends(*numbers: int) -> list[End]:
    """Of two producers, each in all of these partitions."""
    return [End(producer, 0, 4, 9, producer == 7, [(TOPIC, number) for number in numbers]) for producer in (7, 8)]


def write(node: Node, *numbers: int, patient: bool = True) -> Failures:
    job = node.spawn(node.services.markers.write(ends(*numbers), patient=patient))
    for _ in range(1000):
        if not job.is_done:
            node.runtime.advance(LOOK_MS)
    return job.result()


def test_one_request_for_each_node() -> None:
    node = three_nodes(leader=3, partitions=3)
    assign(node, 1, 1)
    others = Others(node, lambda *_: None)
    assert write(node, 0, 1, 2) == {}
    asked = {number: [(end.producer_id, end.places) for end in sent] for number, sent in others.asked}
    assert len(others.asked) == len(asked)
    assert asked == {
        3: [(7, [(TOPIC, 0), (TOPIC, 2)]), (8, [(TOPIC, 0), (TOPIC, 2)])],
        1: [(7, [(TOPIC, 1)]), (8, [(TOPIC, 1)])],
    }
    (sent, *_) = others.asked[0][1]
    assert (sent.coordinator_epoch, sent.number, sent.commit) == (4, 9, True)


def test_a_leader_that_has_moved_is_found_and_what_was_written_is_not_asked_again() -> None:
    node = three_nodes(leader=3, partitions=2)

    def refuse(at: int, _: str, number: int) -> tuple[str, str] | None:
        if (at, number) != (3, 1):
            return None
        if node.services.metadata.image.assignment(TOPIC, 1).leader == at:  # each end asks
            assign(node, 1, 1)
        return MOVED

    others = Others(node, refuse)
    assert write(node, 0, 1) == {}
    assert [(at, {place for end in sent for place in end.places}) for at, sent in others.asked] == [
        (3, {(TOPIC, 0), (TOPIC, 1)}),
        (1, {(TOPIC, 1)}),
    ]


def test_silence_is_asked_again_and_told_when_the_time_is_over() -> None:
    node = three_nodes(leader=3)
    others = Others(node, lambda *_: None)
    others.silent = {3}
    before = node.clock.monotonic()
    (failure,) = write(node, 0).values()
    assert isinstance(failure, BrokerError)
    assert failure.reason is Reason.TIMED_OUT
    assert node.clock.monotonic() - before >= HOLD_SECONDS
    assert len(others.asked) > 5
    others.asked.clear()
    assert len(write(node, 0, patient=False)) == len(others.asked) == 1


def test_a_partition_without_a_leader_is_a_failure_and_one_that_is_gone_is_none() -> None:
    node = three_nodes(leader=None)
    others = Others(node, lambda *_: None)
    (failure,) = write(node, 0, patient=False).values()
    assert isinstance(failure, BrokerError)
    assert failure.reason is Reason.NOT_LEADER
    assert write(node, 5, patient=False) == {}
    topic_id = node.services.hosting.meta(TOPIC).topic_id
    node.services.metadata.change_exclusively([e.DeleteTopic(topic=TOPIC, topic_id=topic_id, deleted_ms=0)])
    assert write(node, 0, patient=False) == {}
    assert others.asked == []


def test_a_dead_leader_is_not_asked() -> None:
    node = three_nodes(leader=3)
    others = Others(node, lambda *_: None)
    node.services.metadata.change_exclusively([e.FenceNode(node=3, incarnation=1)])
    assert len(write(node, 0, patient=False)) == 1
    assert others.asked == []


def test_what_another_node_refuses_for_good_is_not_asked_again() -> None:
    node = three_nodes(leader=3)
    others = Others(node, lambda *_: (Reason.NOT_COORDINATOR.name, "epoch 4 is over"))
    (failure,) = write(node, 0).values()
    assert isinstance(failure, BrokerError)
    assert (failure.reason, len(others.asked)) == (Reason.NOT_COORDINATOR, 1)


def test_a_node_marks_what_it_leads_and_says_what_it_does_not() -> None:
    node = three_nodes(leader=2)
    body = msgspec.msgpack.encode([*ends(0), End(7, 0, 4, 9, True, [("nowhere", 0)])])
    answer = msgspec.msgpack.decode(node.run(node.services.markers.handle_call(body)))
    assert [(target, word) for target, word, _ in answer] == [(["nowhere", 0], "TOPIC_NOT_FOUND")]
    assert node.services.hosting.partition(TOPIC, 0).end_offset == 2
    with refused_with(Reason.INVALID_RECORD):
        node.run(node.services.markers.handle_call(b"?"))
