"""`braid txn` against a real node."""

from collections.abc import Iterator

import pytest
from tests.adapters.kafka.asker import Asker, create
from tests.cli.braid import Braid, fresh

from braidlog import connect
from braidlog.client.errors import Refusal, RefusedError
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import transactions as t


@pytest.fixture
def braid(braid_server_shared: ServerProcess) -> Braid:
    return Braid(braid_server_shared)


@pytest.fixture
def asker(braid_server_shared: ServerProcess) -> Iterator[Asker]:
    with Asker(("127.0.0.1", braid_server_shared.ports["kafka"])) as asker:
        yield asker


def _begin(asker: Asker, name: str, topic: str) -> tuple[int, int]:
    """Open a transaction that writes to two partitions."""
    made = asker.ask(t.InitProducerIdRequest(name, 60_000))
    producer = made.producer_id, made.producer_epoch
    told = asker.ask(t.AddPartitionsToTxnRequest(name, *producer, [t.AddPartitionsToTxnRequestTopic(topic, [0, 2])]), 3)
    assert [each.partition_error_code for each in told.results_by_topic[0].results_by_partition] == [0, 0]
    return producer


def _commit(asker: Asker, name: str, producer: tuple[int, int]) -> int:
    code: int = asker.ask(t.EndTxnRequest(name, *producer, committed=True), 4).error_code
    return code


def test_an_open_transaction_is_shown_and_aborted(braid: Braid, asker: Asker) -> None:
    name, topic = fresh("tx"), fresh("topic")
    create(asker, topic, 3)
    producer = _begin(asker, name, topic)
    row = {"transactional_id": name, "state": "Ongoing", "producer_id": producer[0]}
    assert row in braid.json("txn", "list", schema="txn-list")
    assert row in braid.json("txn", "list", "--open", schema="txn-list")
    assert [name, "Ongoing", str(producer[0])] in [line.split() for line in braid.ok("txn", "list").splitlines()]
    found = braid.json("txn", "describe", name, schema="txn-describe")
    assert found.pop("started_ms") > 0
    assert found == {
        **row,
        "producer_epoch": producer[1],
        "timeout_ms": 60_000,
        "partitions": [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 2}],
    }
    shown = braid.ok("txn", "describe", name).splitlines()
    assert shown[0].startswith(f"{name}: Ongoing, began 20")
    assert [line.split() for line in shown[2:]] == [["TOPIC", "PARTITION"], [topic, "0"], [topic, "2"]]
    assert "--yes" in braid.fails(2, "txn", "abort", name)
    assert braid.ok("txn", "abort", name, "--yes") == f"aborted the transaction of {name}\n"
    assert name not in braid.ok("txn", "list", "--open", "-o", "name").split()
    assert name in braid.ok("txn", "list", "-o", "name").split()
    assert _commit(asker, name, producer) == E.PRODUCER_FENCED
    assert "has no open transaction" in braid.fails(1, "txn", "abort", name, "--yes")


def test_producers_of_a_topic_and_where_a_transaction_is_open(braid: Braid) -> None:
    name, topic = fresh("tx"), fresh("topic")
    with connect(braid.url) as client:
        client.admin.create_topic(topic, 2)
        assert f"{topic} has no producers" in braid("txn", "producers", topic).stderr
        producer = client.producer(transactional_id=name)
        with producer.transaction():
            producer.send(topic, b"one", partition=1)
            producer.send(topic, b"two", partition=1)
        with producer.transaction():
            producer.send(topic, b"three", partition=1)
            producer.flush()
            (row,) = braid.json("txn", "producers", topic, "--open", schema="txn-producers")
            assert row.pop("last_timestamp_ms") > 0
            told = client.admin.describe_transaction(name)
            who = {"producer_id": told.producer_id, "producer_epoch": told.producer_epoch}
            assert row == {"partition": 1, **who, "last_sequence": 2, "open_since": 3}
            shown = [line.split() for line in braid.ok("txn", "producers", topic).splitlines()]
            assert shown[0][::5] == ["PARTITION", "OPEN-SINCE"]
            assert shown[1][:4] == ["1", str(told.producer_id), str(told.producer_epoch), "2"]
            assert shown[1][5] == "3"
        assert braid.json("txn", "producers", topic, "--open", schema="txn-producers") == []
        assert [row["open_since"] for row in braid.json("txn", "producers", topic, schema="txn-producers")] == [None]
    assert "no such topic" in braid.fails(3, "txn", "producers", fresh("absent"))


def test_one_that_has_ended_is_not_aborted(braid: Braid, asker: Asker) -> None:
    name, topic = fresh("tx"), fresh("topic")
    create(asker, topic, 3)
    producer = _begin(asker, name, topic)
    assert _commit(asker, name, producer) == E.NONE
    assert braid.json("txn", "describe", name, schema="txn-describe")["state"] == "CompleteCommit"
    assert "its state is CompleteCommit" in braid.fails(1, "txn", "abort", name, "--yes")


def test_a_producer_that_began_anew_is_let_be(braid: Braid, asker: Asker) -> None:
    """Between the look and the abort, while somebody is asked."""
    name, topic = fresh("tx"), fresh("topic")
    create(asker, topic, 3)
    _begin(asker, name, topic)
    with connect(braid.url) as client:
        found = client.admin.describe_transaction(name)
        second = _begin(asker, name, topic)
        with pytest.raises(RefusedError) as caught:
            client.admin.abort_transaction(found)
    assert caught.value.reason is Refusal.FENCED
    assert _commit(asker, name, second) == E.NONE


def test_one_that_is_not_there(braid: Braid, braid_server_shared: ServerProcess) -> None:
    for command in ("describe", "abort"):
        assert "unknown transactional id 'nope'" in braid.fails(3, "txn", command, "nope")
    assert "supported by: kafka" in Braid(braid_server_shared, "cursus").fails(3, "txn", "list")
