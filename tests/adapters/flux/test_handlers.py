"""What a handler does on its own: what acks=all needs on a topic that was made by using it, how much an answer has."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.adapters.contract import answer_of
from braidlog.adapters.flux.handlers import FluxAdapter
from braidlog.adapters.flux.services import Services
from braidlog.codec.batch.records import encode_batch
from braidlog.model.errors import Reason
from braidlog.partition.produce.append import Acks
from braidlog.wire.flux import messages as m
from braidlog.wire.flux.partitioner import partition_for_key

CONVERSATION: Any = SimpleNamespace(principal="anonymous", peer="there:1")
ALL = m.Produce("1", "orders", b"k", b"v", m.Acks.ALL)


def flux(node: Node, replication_factor: int) -> FluxAdapter:
    return FluxAdapter(node.services.only(Services), replication_factor=replication_factor)


def test_with_one_replica_the_leader_is_all() -> None:
    node = Node()
    assert node.run(answer_of(flux(node, 1).handle, CONVERSATION, ALL)).offset == 0


@pytest.mark.parametrize("first", [ALL, m.Consume("1", "orders", 0, 0), m.Join("1", "g", "orders", "c")])
def test_with_absent_followers_acks_all_times_out_until_one_has_the_record(first: m.Request) -> None:
    """Whatever it was that made the topic."""
    node = Node()
    adapter = flux(node, 3)
    made = node.spawn(answer_of(adapter.handle, CONVERSATION, first))
    node.runtime.advance(3_000)
    assert made.is_done
    waiting = node.spawn(answer_of(adapter.handle, CONVERSATION, ALL))
    assert not waiting.is_done
    node.runtime.advance(3_000)
    with refused_with(Reason.ACKS_TIMED_OUT, match=r"1 of 3 replicas of orders/\d are in sync \(2 must be\)"):
        waiting.result()
    again = node.spawn(answer_of(adapter.handle, CONVERSATION, ALL))
    partition = partition_for_key(b"k", 3)
    last = node.services.hosting.partition("orders", partition).log.end_offset - 1
    told = node.run(answer_of(adapter.handle, CONVERSATION, m.ReplicaFetch("1", "orders", partition, 2, last)))
    assert told.in_sync == (0, 2)
    assert again.result().offset == last


def test_kafkas_acks_all_on_such_a_topic_is_satisfied_by_the_leader() -> None:
    node = Node()
    node.run(answer_of(flux(node, 3).handle, CONVERSATION, m.Consume("1", "orders", 0, 0)))
    assert node.services.hosting.partition("orders", 0).replicas.replication_factor == 3
    assert (
        node.run(
            node.services.append.append("orders", 0, encode_batch([b"v"], base_timestamp=0), acks=Acks.ALL)
        ).base_offset
        == 0
    )


@pytest.mark.parametrize("asked", [None, 5])
def test_an_answer_has_so_many_records_and_no_more(monkeypatch: pytest.MonkeyPatch, asked: int | None) -> None:
    """However many are asked for."""
    monkeypatch.setattr("braidlog.adapters.flux.handlers.RECORDS_PER_ANSWER_MAX", 3)
    node = Node()
    adapter = flux(node, 1)
    partition = partition_for_key(b"k", 3)
    for _ in range(5):
        node.run(answer_of(adapter.handle, CONVERSATION, ALL))
    answer = node.run(
        answer_of(adapter.handle, CONVERSATION, m.Consume("1", "orders", partition, 0, records_max=asked))
    )
    assert [record.offset for record in answer.records] == [0, 1, 2]
