"""What an idempotent producer hears of batches that were under way behind one that was refused for now."""

from collections.abc import Callable

import pytest
from tests.adapters.kafka.client import batch_of, produce_of
from tests.adapters.one_of_three import in_bytes
from tests.broker.node import Node
from tests.broker.three_nodes import TOPIC, assign, three_nodes
from tests.refusals import refused_with
from tests.replication.planted import RuleBug, planted

from braidlog.adapters.kafka.records import refused_batches
from braidlog.adapters.kafka.records.refused_batches import RefusedBatches
from braidlog.codec.batch.header import read_header
from braidlog.model.errors import BrokerError, Reason
from braidlog.server.adapters import make_adapter
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import ClientConnection, Response
from braidlog.wire.kafka.messages import data as d

LAST = 2**31 - 1
OWN, OTHER = 2, 3
Send = Callable[..., E]


def sender(node: Node) -> Send:
    """Produce of so many records from a sequence number on; gives the code that is answered."""
    adapter = make_adapter("kafka", node.services)

    def send(sequence: int, *, count: int = 1, producer: int = 1000, epoch: int = 0) -> E:
        batch = batch_of(*[b"v"] * count, producer=(producer, epoch, sequence))
        client = ClientConnection("c")
        client.receive(in_bytes(node, adapter, client.request(produce_of((TOPIC, 0, batch), acks=1), 12)))
        answer = client.next_event()
        assert isinstance(answer, Response)
        (found,) = answer.message.responses[0].partition_responses
        return E(found.error_code)

    return send


def test_what_follows_a_refused_batch_is_refused_until_that_one_is_written() -> None:
    """Told of a gap, librdkafka would number its batches anew in every partition, and write some of them twice."""
    node = three_nodes(OWN)
    send = sender(node)
    assert send(0) is E.NONE
    assign(node, OTHER)
    assert send(1, count=2) is E.NOT_LEADER_OR_FOLLOWER
    assign(node, OWN)
    assert [send(3), send(4)] == [E.NOT_ENOUGH_REPLICAS] * 2, (
        "they were under way, and there is no gap but for our refusal"
    )
    assert [send(1, count=2), send(3), send(4)] == [E.NONE] * 3
    assert node.services.hosting.partition(TOPIC, 0).log.end_offset == 5


def test_the_first_batch_of_all_is_not_passed_by_the_second() -> None:
    """A log takes any number from a producer that it does not know: the first would be late for ever."""
    node = three_nodes(OWN)
    send = sender(node)
    assign(node, OTHER)
    assert send(0) is E.NOT_LEADER_OR_FOLLOWER
    assign(node, OWN)
    assert [send(1), send(0), send(1)] == [E.NOT_ENOUGH_REPLICAS, E.NONE, E.NONE]


def test_a_topic_that_is_not_here_yet_counts_as_a_refusal() -> None:
    node = Node()
    send = sender(node)
    assert send(0) is E.UNKNOWN_TOPIC_OR_PARTITION
    node.create(TOPIC, 1)
    assert [send(1), send(0), send(1)] == [E.NOT_ENOUGH_REPLICAS, E.NONE, E.NONE]


def test_a_gap_is_told_where_the_refused_batch_is_left_out() -> None:
    node = three_nodes(OWN)
    send = sender(node)
    assert send(0) is E.NONE
    assign(node, OTHER)
    assert send(1) is E.NOT_LEADER_OR_FOLLOWER
    assign(node, OWN)
    assert send(3) is E.OUT_OF_ORDER_SEQUENCE_NUMBER, "number 2 was never seen"
    assert [send(2), send(2)] == [E.NOT_ENOUGH_REPLICAS, E.OUT_OF_ORDER_SEQUENCE_NUMBER], "1 does not come again"


def test_other_producers_and_other_epochs_are_not_held_up() -> None:
    node = three_nodes(OWN)
    send = sender(node)
    assign(node, OTHER)
    assert send(0) is E.NOT_LEADER_OR_FOLLOWER
    assign(node, OWN)
    assert [send(1, producer=1001), send(1, epoch=1)] == [E.NONE, E.NONE]


def test_numbers_begin_anew_after_the_last() -> None:
    refused, topic = RefusedBatches(), d.ProduceRequestTopic(TOPIC)
    refused.remember(topic, 0, read_header(batch_of(b"v", producer=(1, 0, LAST))))
    with refused_with(Reason.NOT_ENOUGH_REPLICAS):
        refused.check(topic, 0, read_header(batch_of(b"v", producer=(1, 0, 0))))


def test_no_more_are_remembered_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_batches, "REFUSED_MAX", 2)
    refused, topic = RefusedBatches(), d.ProduceRequestTopic(TOPIC)
    assert not refused.following
    for producer in (1, 2, 1, 3):
        refused.remember(topic, 0, read_header(batch_of(b"v", producer=(producer, 0, 0))))
    refused.remember(topic, 0, read_header(batch_of(b"v")))
    following = {producer: read_header(batch_of(b"v", producer=(producer, 0, 1))) for producer in (1, 2, 3)}
    refused.check(topic, 0, following[2])
    for producer in (1, 3):
        with pytest.raises(BrokerError):
            refused.check(topic, 0, following[producer])
        refused.forget(topic, 0, following[producer])
    assert not refused.following


def test_a_planted_bug_is_found() -> None:
    """Number 78 of the table in `docs/guides/durability.md`."""
    bug = RuleBug(
        "batch behind a refused one told of a gap",
        ((RefusedBatches, "check", lambda *_: None),),
        test_what_follows_a_refused_batch_is_refused_until_that_one_is_written,
    )
    with planted(bug), pytest.raises(AssertionError, match="under way"):
        bug.killer()
