"""Batches that count once, over the door: who may, what is answered, what foreign readers see."""

from typing import Any

import pytest
from tests.adapters.kafka.client import batch_of, produce_of
from tests.adapters.kafka.test_served import Door, Talk, produced

from braidlog.model.stage_ids import stage_name
from braidlog.security.authorization import Operation, Rule
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import staging as s
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.messages.parts import TransactionalProducer


@pytest.fixture
def door() -> Door:
    made = Door()
    made.node.create("a", 1)
    return made


def stage(door: Door, task: str = "0-0", *, batch: int = 0, value: bytes = b"x") -> TransactionalProducer:
    name = stage_name("s", batch, task)
    begun = door.ask(t.InitProducerIdRequest(name, 60_000))
    assert begun.error_code == E.NONE
    producer: Any = (name, begun.producer_id, begun.producer_epoch)
    topics = [t.AddPartitionsToTxnRequestTopic("a", [0])]
    added = door.ask(t.AddPartitionsToTxnRequest(name, begun.producer_id, begun.producer_epoch, topics))
    assert added.results_by_topic[0].results_by_partition[0].partition_error_code == E.NONE
    data = batch_of(value, producer=(begun.producer_id, begun.producer_epoch, 0), transactional=True)
    assert produced(door.ask(produce_of(("a", 0, data), transactional_id=name))) == [E.NONE]
    return TransactionalProducer(*producer)


def commit(door: Door, *stages: TransactionalProducer, batch: int = 0, talk: Any = None, writer: str = "") -> Any:
    return ask(door, s.CommitBatchRequest("s", batch, writer, list(stages)), talk)


def ask(door: Door, message: Any, talk: Any = None) -> Any:
    """As a session does: what a handler raises becomes the route's refusal."""
    request = door.request(message)
    try:
        return door.node.run(door.begin(request, talk))
    except Exception as error:  # noqa: BLE001 - whatever it is, a session asks the adapter
        return door.adapter.failure(request, error)


def test_a_batch_is_committed_once(door: Door) -> None:
    first = stage(door)
    assert ask(door, s.SinkStateRequest("s")).last_batch == -1
    assert commit(door, first) == s.CommitBatchResponse(last_batch=0)
    assert commit(door, first) == s.CommitBatchResponse(last_batch=0, already=True)
    assert commit(door, stage(door, "0-1", value=b"replay")) == s.CommitBatchResponse(last_batch=0, already=True)
    assert ask(door, s.AbortBatchRequest("s", 0, [first])) == s.AbortBatchResponse(last_batch=0, already=True)
    assert ask(door, s.AbortBatchRequest("s", 0, None)) == s.AbortBatchResponse(last_batch=0, already=True)
    assert ask(door, s.SinkStateRequest("s")).last_batch == 0
    assert door.node.values("a") == [b"x"]


def test_refusals_have_codes_and_words(door: Door) -> None:
    fine, fenced = stage(door, "0-0"), stage(door, "1-1")
    door.ask(t.InitProducerIdRequest(fenced.transactional_id, 60_000))
    answer = commit(door, fine, fenced)
    assert (answer.error_code, answer.last_batch) == (E.INVALID_PRODUCER_EPOCH, -1)
    assert fenced.transactional_id in answer.error_message
    unknown = TransactionalProducer(stage_name("s", 0, "9-9"), 5, 0)
    assert commit(door, fine, unknown).error_code == E.INVALID_PRODUCER_ID_MAPPING
    assert commit(door, TransactionalProducer("other", 5, 0)).error_code == E.INVALID_TXN_STATE
    assert commit(door, batch=-1).error_code == E.INVALID_TXN_STATE
    assert ask(door, s.AbortBatchRequest("", 0)).error_code == E.INVALID_TXN_STATE
    commit(door, fine, writer="q1")
    refused = ask(door, s.SinkStateRequest("s", "q2"))
    assert refused.error_code == E.INVALID_TXN_STATE
    assert "another sinkId" in refused.error_message


def test_who_may_not_write_decides_nothing() -> None:
    rules = [
        Rule("alice", [Operation.WRITE], "a", transactional_id="braidlog.sink/s/*"),
        Rule("bob", [Operation.WRITE], "b", transactional_id="braidlog.sink/s/*"),
        Rule("carol", [Operation.READ]),
        Rule("dave", [Operation.WRITE], "*"),
    ]
    door = Door(None, *rules, tokens=True)
    door.node.create("a", 1)
    door.node.create("b", 1)
    staged = stage(door)
    bob, carol, dave = Talk("bob"), Talk("carol"), Talk("dave")
    for asked in (s.SinkStateRequest("s"), s.AbortBatchRequest("s", 0, [staged]), s.AbortBatchRequest("s", 0, None)):
        assert ask(door, asked, dave).error_code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "he may write any topic"
    assert commit(door, staged, talk=dave).error_code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert commit(door, staged, talk=bob).error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert commit(door, talk=carol).error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert ask(door, s.SinkStateRequest("s"), carol).error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert ask(door, s.AbortBatchRequest("s", 0, [staged]), bob).error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert commit(door, staged).error_code == E.NONE
    assert commit(door, batch=9, talk=bob).error_code == E.TOPIC_AUTHORIZATION_FAILED, "the name is alice's"
    assert ask(door, s.SinkStateRequest("s"), bob).error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert ask(door, s.SinkStateRequest("s")).last_batch == 0
