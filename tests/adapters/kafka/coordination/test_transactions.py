"""Transactions over a socket: every version by hand, three client libraries, fencing, timeouts, kill -9."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.kafka.asker import Asker, create
from tests.adapters.kafka.clients import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    Consumer,
    KafkaException,
    KafkaProducer,
    Producer,
    TopicPartition,
)
from tests.waiting import until

from braidlog.codec.batch.records import encode_batch
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import transactions as t

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("data"), "--set", "groups.rebalance_delay_ms=50") as process:
        yield process


def begin(asker: Asker, name: str, version: int = 5, **more: Any) -> Any:
    return asker.ask(
        t.InitProducerIdRequest(**{"transactional_id": name, "transaction_timeout_ms": 60_000, **more}), version
    )


def add(asker: Asker, name: str, who: Any, topic: str, *partitions: int, version: int = 3) -> list[int]:
    asked = [t.AddPartitionsToTxnRequestTopic(topic, list(partitions))]
    told = asker.ask(t.AddPartitionsToTxnRequest(name, who.producer_id, who.producer_epoch, asked), version)
    return [each.partition_error_code for each in told.results_by_topic[0].results_by_partition]


def write(
    asker: Asker,
    who: Any,
    topic: str,
    value: bytes,
    sequence: int = 0,
    *,
    partition: int = 0,
    version: int = 9,
) -> int:
    """In the transaction that is named as the topic is."""
    batch = encode_batch(
        [value],
        base_timestamp=1_700_000_000_000,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )
    asked = d.ProduceRequest(
        topic, -1, 30_000, [d.ProduceRequestTopic(topic, partition_data=[d.ProduceRequestPartition(partition, batch)])]
    )
    return int(asker.ask(asked, version).responses[0].partition_responses[0].error_code)


def end(asker: Asker, name: str, who: Any, *, commit: bool, version: int = 4) -> int:
    return int(asker.ask(t.EndTxnRequest(name, who.producer_id, who.producer_epoch, commit), version).error_code)


def stage(asker: Asker, name: str, who: Any, group: str, topic: str, offset: int, version: int = 4, **more: Any) -> int:
    asked = [t.TxnOffsetCommitRequestTopic(topic, [t.TxnOffsetCommitRequestPartition(0, offset, 1, "in txn")])]
    told = asker.ask(
        t.TxnOffsetCommitRequest(name, group, who.producer_id, who.producer_epoch, topics=asked, **more), version
    )
    return int(told.topics[0].partitions[0].error_code)


def committed(asker: Asker, group: str, topic: str, *, stable: bool = False) -> tuple[int, int]:
    topics = [g.OffsetFetchRequestTopic(topic, partition_indexes=[0])]
    told = asker.ask(g.OffsetFetchRequest(group, topics, require_stable=stable), 7)
    found = told.topics[0].partitions[0]
    return found.committed_offset, found.error_code


def read(address: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """All values up to the end that this reader sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []

    def step() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
        return message is not None and message.error() is not None

    until(step)
    consumer.close()
    return found


# -- by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_a_transaction_in_every_version(asker: Asker, address: str, version: int) -> None:
    topic = name = f"life{version}"
    create(asker, topic, 2)
    who = begin(asker, name, version)
    assert who.error_code == 0
    assert add(asker, name, who, topic, 0, 1, version=min(version, 3)) == [0, 0]
    assert write(asker, who, topic, b"kept") == 0
    group = t.AddOffsetsToTxnRequest(name, who.producer_id, who.producer_epoch, "group-" + name)
    assert asker.ask(group, min(version, 4)).error_code == 0
    assert stage(asker, name, who, "group-" + name, topic, 17, version=min(version, 4)) == 0
    assert committed(asker, "group-" + name, topic) == (-1, 0)
    assert committed(asker, "group-" + name, topic, stable=True) == (-1, E.UNSTABLE_OFFSET_COMMIT)
    for _ in range(2):
        assert end(asker, name, who, commit=True, version=min(version, 4)) == 0, "asking again is fine"
    assert committed(asker, "group-" + name, topic, stable=True) == (17, 0)
    assert add(asker, name, who, topic, 0) == [0]
    assert write(asker, who, topic, b"dropped", sequence=1) == 0
    assert end(asker, name, who, commit=False) == 0
    assert read(address, topic) == [b"kept"]
    assert read(address, topic, "read_uncommitted") == [b"kept", b"dropped"]


def test_a_transaction_of_version_2(asker: Asker, address: str) -> None:
    """Nothing is added: Produce 12 and TxnOffsetCommit 5 begin it, EndTxn 5 gives the next epoch."""
    create(asker, "v2")
    who = begin(asker, "v2")
    assert write(asker, who, "v2", b"kept", version=12) == 0
    assert stage(asker, "v2", who, "group-v2", "v2", 17, version=5) == 0
    assert committed(asker, "group-v2", "v2", stable=True) == (-1, E.UNSTABLE_OFFSET_COMMIT)
    asked = t.EndTxnRequest("v2", who.producer_id, who.producer_epoch, committed=True)
    told = asker.ask(asked, 5)
    assert (told.error_code, told.producer_id, told.producer_epoch) == (0, who.producer_id, who.producer_epoch + 1)
    assert asker.ask(asked, 5) == told, "asking again is fine"
    assert committed(asker, "group-v2", "v2", stable=True) == (17, 0)
    assert write(asker, who, "v2", b"late", sequence=1, version=12) == E.INVALID_PRODUCER_EPOCH
    assert stage(asker, "v2", told, "group-v2", "v2", 18, version=5) == 0, "a group alone begins one too"
    assert write(asker, told, "v2", b"dropped", version=12) == 0
    assert asker.ask(t.EndTxnRequest("v2", told.producer_id, told.producer_epoch), 5).error_code == 0
    assert committed(asker, "group-v2", "v2", stable=True) == (17, 0)
    assert read(address, "v2") == [b"kept"]


def test_an_earlier_self_is_fenced_in_the_words_of_each_version(asker: Asker) -> None:
    create(asker, "fenced")
    old = begin(asker, "fenced")
    assert add(asker, "fenced", old, "fenced", 0) == [0]
    assert write(asker, old, "fenced", b"left open") == 0
    new = begin(asker, "fenced")
    assert (new.producer_id, new.producer_epoch > old.producer_epoch) == (old.producer_id, True)
    for version, code in (
        (0, E.INVALID_PRODUCER_EPOCH),
        (1, E.INVALID_PRODUCER_EPOCH),
        (2, E.PRODUCER_FENCED),
        (3, 90),
    ):
        assert add(asker, "fenced", old, "fenced", 0, version=version) == [code]
        assert end(asker, "fenced", old, commit=True, version=version) == code
    group = t.AddOffsetsToTxnRequest("fenced", old.producer_id, old.producer_epoch, "g")
    assert asker.ask(group, 4).error_code == E.PRODUCER_FENCED
    assert stage(asker, "fenced", old, "g", "fenced", 1) == E.INVALID_PRODUCER_EPOCH
    assert write(asker, old, "fenced", b"zombie", sequence=1) == E.INVALID_PRODUCER_EPOCH
    going_on = {"producer_id": old.producer_id, "producer_epoch": old.producer_epoch}
    assert begin(asker, "fenced", 4, **going_on).error_code == E.PRODUCER_FENCED
    assert begin(asker, "fenced", 3, **going_on).error_code == E.INVALID_PRODUCER_EPOCH
    mine = {"producer_id": new.producer_id, "producer_epoch": new.producer_epoch}
    next_one = begin(asker, "fenced", 4, **mine)
    assert next_one.producer_epoch == new.producer_epoch + 1
    assert begin(asker, "fenced", 4, **mine).producer_epoch == next_one.producer_epoch, "a retry"


def test_what_is_refused(asker: Asker) -> None:
    create(asker, "refused", 2)
    assert begin(asker, "refused", transaction_timeout_ms=10**9).error_code == E.INVALID_TRANSACTION_TIMEOUT
    assert begin(asker, "refused", transaction_timeout_ms=0).error_code == E.INVALID_TRANSACTION_TIMEOUT
    assert begin(asker, "").error_code == E.INVALID_REQUEST
    assert begin(asker, "refused", producer_id=5).error_code == E.INVALID_REQUEST
    who = begin(asker, "refused")
    assert write(asker, who, "refused", b"x") == E.INVALID_TXN_STATE, "the partition was not added"
    assert add(asker, "refused", who, "refused", 0, 9) == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert add(asker, "never heard of", who, "refused", 0) == [E.INVALID_PRODUCER_ID_MAPPING]
    stranger = t.InitProducerIdResponse(producer_id=who.producer_id + 1, producer_epoch=who.producer_epoch)
    assert add(asker, "refused", stranger, "refused", 0) == [E.INVALID_PRODUCER_ID_MAPPING]
    assert stage(asker, "refused", who, "g", "refused", 1) == E.INVALID_TXN_STATE, "it has not begun"
    assert add(asker, "refused", who, "refused", 0) == [0]
    assert end(asker, "refused", who, commit=True) == 0
    assert end(asker, "refused", who, commit=False) == E.INVALID_TXN_STATE


def test_offsets_are_fenced_by_the_group(asker: Asker) -> None:
    create(asker, "offsets")
    member = asker.alone("offsets")
    who = begin(asker, "offsets")
    assert (
        asker.ask(t.AddOffsetsToTxnRequest("offsets", who.producer_id, who.producer_epoch, "offsets")).error_code == 0
    )
    fields = {"member_id": member.member_id, "generation_id": member.generation_id}
    assert (
        stage(asker, "offsets", who, "offsets", "offsets", 1, **{**fields, "generation_id": 9}) == E.ILLEGAL_GENERATION
    )
    assert stage(asker, "offsets", who, "offsets", "offsets", 1, **{**fields, "member_id": "x"}) == E.UNKNOWN_MEMBER_ID
    fenced = {**fields, "group_instance_id": "nobody"}
    assert stage(asker, "offsets", who, "offsets", "offsets", 1, **fenced) == E.UNKNOWN_MEMBER_ID
    assert stage(asker, "offsets", who, "offsets", "offsets", 1, **fields) == 0
    assert stage(asker, "offsets", who, "offsets", "nope", 1, **fields) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert end(asker, "offsets", who, commit=True) == 0
    assert committed(asker, "offsets", "offsets") == (1, 0)


def test_looking_at_transactions(asker: Asker) -> None:
    create(asker, "looked", 2)
    who = begin(asker, "looked")
    add(asker, "looked", who, "looked", 0, 1)
    write(asker, who, "looked", b"x", sequence=0)
    listed = asker.ask(t.ListTransactionsRequest(["Ongoing", "nonsense"], [who.producer_id]))
    assert [(each.transactional_id, each.transaction_state) for each in listed.transaction_states] == [
        ("looked", "Ongoing")
    ]
    assert listed.unknown_state_filters == ["nonsense"]
    assert asker.ask(t.ListTransactionsRequest([], [], 10**9)).transaction_states == []
    shown, gone = asker.ask(t.DescribeTransactionsRequest(["looked", "nope"])).transaction_states
    assert (shown.transaction_state, shown.transaction_timeout_ms, shown.producer_id) == (
        "Ongoing",
        60_000,
        who.producer_id,
    )
    assert [(each.topic, list(each.partitions)) for each in shown.topics] == [("looked", [0, 1])]
    assert gone.error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    asked = [t.DescribeProducersRequestTopic("looked", [0, 1, 7])]
    first, second, third = asker.ask(t.DescribeProducersRequest(asked)).topics[0].partitions
    (producer,) = first.active_producers
    assert (producer.producer_id, producer.last_sequence, producer.current_txn_start_offset) == (who.producer_id, 0, 0)
    assert (second.active_producers, third.error_code) == ([], E.UNKNOWN_TOPIC_OR_PARTITION)
    assert end(asker, "looked", who, commit=False) == 0


def test_one_that_is_open_for_too_long_is_aborted(asker: Asker, address: str) -> None:
    create(asker, "late")
    who = begin(asker, "late", transaction_timeout_ms=200)
    add(asker, "late", who, "late", 0)
    assert write(asker, who, "late", b"late") == 0

    def state() -> str:
        return str(asker.ask(t.DescribeTransactionsRequest(["late"])).transaction_states[0].transaction_state)

    until(lambda: state() == "CompleteAbort")
    assert end(asker, "late", who, commit=True) == E.PRODUCER_FENCED
    assert read(address, "late") == []


# -- client libraries --------------------------------------------------------------------------------------------


def test_librdkafka(asker: Asker, address: str) -> None:
    create(asker, "rd-in")
    create(asker, "rd-out")
    source = Producer({"bootstrap.servers": address})
    for number in range(20):
        source.produce("rd-in", b"%d" % number)
    assert source.flush(WAIT_SECONDS) == 0
    producer = Producer({"bootstrap.servers": address, "transactional.id": "rd"})
    producer.init_transactions(WAIT_SECONDS)
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "rd",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["rd-in"])
    for turn in range(4):
        messages = [until(lambda: consumer.poll(0.1)) for _ in range(5)]
        producer.begin_transaction()
        for message in messages:
            producer.produce("rd-out", message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_SECONDS
        )
        if turn == 1:
            producer.abort_transaction(WAIT_SECONDS)
            consumer.seek(TopicPartition("rd-in", 0, 5))
        else:
            producer.commit_transaction(WAIT_SECONDS)
    (place,) = consumer.committed([TopicPartition("rd-in", 0)], WAIT_SECONDS)
    assert place.offset == 15
    consumer.close()
    assert read(address, "rd-out") == [b"%d" % number for number in range(15)]


def test_a_librdkafka_producer_is_fenced_by_the_next_of_its_name(asker: Asker, address: str) -> None:
    create(asker, "rd-fenced")
    first, second = (Producer({"bootstrap.servers": address, "transactional.id": "rd-fenced"}) for _ in range(2))
    first.init_transactions(WAIT_SECONDS)
    first.begin_transaction()
    first.produce("rd-fenced", b"zombie")
    first.flush(WAIT_SECONDS)
    second.init_transactions(WAIT_SECONDS)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(WAIT_SECONDS)
    assert caught.value.args[0].name() in ("_FENCED", "_STATE", "INVALID_PRODUCER_EPOCH")
    second.begin_transaction()
    second.produce("rd-fenced", b"new")
    second.commit_transaction(WAIT_SECONDS)
    assert read(address, "rd-fenced") == [b"new"]


def test_kafka_python(asker: Asker, address: str) -> None:
    create(asker, "kp-txn")
    producer = KafkaProducer(bootstrap_servers=address, transactional_id="kp")
    producer.init_transactions()
    for commit in (True, False, True):
        producer.begin_transaction()
        producer.send("kp-txn", b"kept" if commit else b"dropped")
        producer.commit_transaction() if commit else producer.abort_transaction()
    producer.close()
    assert read(address, "kp-txn") == [b"kept", b"kept"]


def test_aiokafka(asker: Asker, address: str) -> None:
    create(asker, "aio-txn")

    async def run() -> list[bytes]:
        producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id="aio")
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait("aio-txn", b"kept")
        await producer.begin_transaction()
        await producer.send_and_wait("aio-txn", b"dropped")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait("aio-txn", b"last")
        await producer.stop()
        consumer = AIOKafkaConsumer(
            "aio-txn", bootstrap_servers=address, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        await consumer.start()
        found: list[bytes] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while b"last" not in found:
                found.append((await consumer.getone()).value)
        await consumer.stop()
        return found

    assert asyncio.run(run()) == [b"kept", b"last"]


# -- kill -9 -----------------------------------------------------------------------------------------------------


def test_a_transaction_outlives_the_node(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        address = "{}:{}".format(*server.address("kafka"))
        with Asker(server.address("kafka")) as asker:
            create(asker, "kept")
            who = begin(asker, "kept")
            assert add(asker, "kept", who, "kept", 0) == [0]
            assert write(asker, who, "kept", b"before") == 0
        server.kill()
        server.restart()
        with Asker(server.address("kafka")) as asker:
            assert write(asker, who, "kept", b"after", sequence=1) == 0
            asked = t.AddOffsetsToTxnRequest("kept", who.producer_id, who.producer_epoch, "g")
            assert asker.ask(asked).error_code == 0
            assert stage(asker, "kept", who, "g", "kept", 2) == 0
        server.kill()
        server.restart()
        with Asker(server.address("kafka")) as asker:
            assert read(address, "kept") == []
            assert end(asker, "kept", who, commit=True) == 0
        server.kill()
        server.restart()
        with Asker(server.address("kafka")) as asker:
            assert end(asker, "kept", who, commit=True) == 0
            assert committed(asker, "g", "kept") == (2, 0)
            assert read(address, "kept") == [b"before", b"after"]
