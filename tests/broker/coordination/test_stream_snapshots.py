"""A stream's snapshot is the same on three nodes, whichever leads the stream."""

from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest
from tests.adapters.peers.linked_nodes import LinkedNode, linked
from tests.broker.node import Node
from tests.broker.three_nodes import TOPIC
from tests.refusals import refused_with

from braidlog.adapters.peers.node_calls import client_call
from braidlog.broker.coordination.stream_snapshots import CALL, StreamSnapshots
from braidlog.coordinator.snapshot_store import KeptSnapshot, Snapshot, StreamName
from braidlog.coordinator.state_limits import StateKind
from braidlog.model.errors import BrokerError, Reason

T = TypeVar("T")
KEPT = Snapshot(3, b"three")


def three() -> dict[int, LinkedNode]:
    nodes = linked(3)
    for each in nodes.values():
        each.table.rows[CALL] = client_call(each.node.services.stream_snapshots.handle_call)
    return nodes


def ended(node: LinkedNode, work: Coroutine[Any, Any, T]) -> T:
    job = node.node.spawn(work)
    for _ in range(200):
        if not job.is_done:
            node.node.runtime.advance(20)
    return job.result()


def stream_of(node: Node, key: bytes = b"k") -> StreamName:
    """As the coordinator's node knows the topic."""
    return StreamName(TOPIC, node.services.hosting.meta(TOPIC).topic_id, key.hex())


def of(node: LinkedNode) -> StreamSnapshots:
    return node.node.services.stream_snapshots


def test_what_one_leader_kept_the_next_one_finds() -> None:
    nodes = three()
    stream = stream_of(nodes[1].node)
    for snapshot in (KEPT, Snapshot(2, b"older")):
        assert ended(nodes[2], of(nodes[2]).save(stream, snapshot, by="ann")) is None
    assert nodes[1].node.services.holdings.used_by(StateKind.SNAPSHOTS, "ann") == 1
    for number, node in nodes.items():
        assert ended(node, of(node).find(stream)) == KEPT, number
    assert nodes[1].called == [CALL] * 4
    assert ended(nodes[3], of(nodes[3]).find(stream_of(nodes[1].node, b"other"))) is None


def test_a_coordinator_that_has_not_heard_of_the_topic_yet_is_asked_again() -> None:
    nodes = three()
    other = msgspec.structs.replace(stream_of(nodes[1].node), topic_id="another")
    for work in (of(nodes[2]).find(other), of(nodes[2]).save(other, KEPT)):
        with pytest.raises(BrokerError, match="unknown topic 'orders' with id another") as caught:
            ended(nodes[2], work)
        assert caught.value.reason is Reason.NOT_COORDINATOR, "a client tries again"
    assert len(nodes[1].called) > 10
    assert nodes[1].node.services.coordinators.coordinator_for(other.counted_as).snapshots._table.values == {}


def test_snapshots_of_topics_that_ended_go_with_the_next_start() -> None:
    """A crash came between the topic's end and theirs."""
    node = Node()
    node.create(TOPIC, 1)
    table, key = node.coordinator(stream_of(node).counted_as).snapshots._table, b"k".hex()
    found = [
        ((name, key), KeptSnapshot(KEPT.version, KEPT.payload, topic_id))
        for name, topic_id in ((TOPIC, stream_of(node).topic_id), ("gone", "01"))
    ]
    node.run(table.journal.wait_committed(table.put_many([*found, ((TOPIC, b"l".hex()), found[1][1])])))
    again = node.restarted()
    assert again.run(again.services.stream_snapshots.find(stream_of(again))) == KEPT
    assert again.services.holdings.used(StateKind.SNAPSHOTS) == 1


def test_a_call_that_is_no_question_is_refused() -> None:
    node = three()[1]
    with refused_with(Reason.INVALID_RECORD):
        ended(node, of(node).handle_call(b"\xc1", "anonymous"))
