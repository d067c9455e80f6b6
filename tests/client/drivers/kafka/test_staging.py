"""Stages and sealed batches through the real door: retried as they are, committed once, aborted, refused by other brokers."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.client.dialects import fresh, run, server_url, until
from tests.client.gate import PartitionLocks
from tests.client.kafka_broker import Broker, batches, produced, told

from braidlog.client.drivers.kafka.driver import KafkaDriver
from braidlog.client.drivers.kafka.staging import (
    IN_FLIGHT_MAX,
    NO_BATCH,
    BatchWriter,
    Decision,
    Section,
    Sinks,
    Stage,
    coordinator_name,
)
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import ClosedError, Refusal, RefusedError, UnsupportedError
from braidlog.client.schemes import make_driver, parse_url
from braidlog.codec.batch.kernel import encode_records
from braidlog.codec.compression import Compression
from braidlog.model.stage_ids import stage_name
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.apis import APIS, Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d

STAMP_MS = 1_700_000_000_000
POLICY = Policy()


def driver_of(url: str) -> KafkaDriver:
    found = make_driver(parse_url(url), POLICY)
    assert isinstance(found, KafkaDriver)
    return found


def section(*values: bytes) -> Section:
    return Section(encode_records(list(values), None, None, None, STAMP_MS), len(values), STAMP_MS, STAMP_MS)


def writer_of(driver: KafkaDriver, sink: str, batch: int = 0, task: str = "0-0", **more: Any) -> BatchWriter:
    more = {"timeout_ms": 60_000, **more}
    return BatchWriter(driver, POLICY, stage=stage_name(sink, batch, task), coordinator=coordinator_name(sink), **more)


async def staged(writer: BatchWriter, topic: str, *values: bytes, partitions: int = 1) -> Stage:
    """Each value a batch of its own, in every partition."""
    await writer.begin()
    await writer.add([(topic, number) for number in range(partitions)])
    for value in values:
        for number in range(partitions):
            await writer.send(writer.seal((topic, number), section(value)))
    await writer.flush()
    assert writer.stage is not None
    return writer.stage


def committed(server: ServerProcess, topic: str, partitions: int = 1) -> list[list[bytes]]:
    """What librdkafka reads, committed only, up to the end of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}",
            "group.id": fresh("g"),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: list[list[bytes]] = [[] for _ in range(partitions)]
        ends: set[int] = set()
        while len(ends) < partitions:
            for each in consumer.consume(1000, timeout=0.05):
                if each.error() is None:
                    found[each.partition()].append(each.value())
                else:
                    assert each.error().name() == "_PARTITION_EOF", each.error()
                    ends.add(each.partition())
        return found
    finally:
        consumer.close()


def with_driver(url: str, test: Any) -> None:
    async def inside() -> None:
        driver = driver_of(url)
        try:
            await test(driver)
        finally:
            driver.close()
            await asyncio.sleep(0)

    run(inside)


@pytest.mark.parametrize("codec", list(Compression))
def test_stages_of_two_tasks_count_together(codec: Compression, braid_server_shared: ServerProcess) -> None:
    async def test(driver: KafkaDriver) -> None:
        topic, sink, sinks = fresh(), fresh("s"), Sinks(driver, POLICY)
        await driver.create_topic(topic, 2)
        writers = [writer_of(driver, sink, task=f"{task}-{task}", compression=codec) for task in range(2)]
        values = [b"%d" % number * 50 for number in range(3 * IN_FLIGHT_MAX)]
        stages = [await staged(writer, topic, *values, partitions=2) for writer in writers]
        assert await asyncio.to_thread(committed, braid_server_shared, topic, 2) == [[], []]
        assert await sinks.state(sink) == NO_BATCH
        assert await sinks.commit(sink, 0, stages, "q") == Decision(0, already=False)
        assert await asyncio.to_thread(committed, braid_server_shared, topic, 2) == [values * 2] * 2
        again = await staged(writer_of(driver, sink, task="0-7"), topic, b"replay")
        assert await sinks.commit(sink, 0, [again], "q") == Decision(0, already=True)
        left = await staged(writer_of(driver, sink, 1), topic, b"left")
        assert await sinks.abort(sink, 1, [left]) == Decision(0, already=False)
        assert await sinks.abort(sink, 0, None) == Decision(0, already=True)
        assert await sinks.state(sink, "q") == 0
        assert await asyncio.to_thread(committed, braid_server_shared, topic, 2) == [values * 2] * 2
        with pytest.raises(RefusedError, match="another sinkId"):
            await sinks.state(sink, "another query")
        with pytest.raises(RefusedError, match="unknown transactional id"):
            await sinks.commit(sink, 1, [left])

    with_driver(server_url("kafka", braid_server_shared), test)


def test_a_producer_without_a_stage_is_read_at_once(braid_server_shared: ServerProcess) -> None:
    async def test(driver: KafkaDriver) -> None:
        topic = fresh()
        await driver.create_topic(topic, 1)
        writer = BatchWriter(driver, POLICY)
        await writer.begin()
        await writer.add([(topic, 0)])
        await writer.send(writer.seal((topic, 0), section(b"a", b"b")))
        await writer.send(writer.seal((topic, 0), section(b"c")))
        await writer.flush()
        assert writer.stage is None
        assert await asyncio.to_thread(committed, braid_server_shared, topic) == [[b"a", b"b", b"c"]]

    with_driver(server_url("kafka", braid_server_shared), test)


def test_a_small_window_holds_the_writer_back_and_everything_arrives(braid_server_shared: ServerProcess) -> None:
    async def test(driver: KafkaDriver) -> None:
        topic, sink = fresh(), fresh("s")
        await driver.create_topic(topic, 1)
        writer = writer_of(driver, sink, window_bytes=300)
        values = [b"%d" % number * 100 for number in range(40)]
        stage = await staged(writer, topic, *values)
        await Sinks(driver, POLICY).commit(sink, 0, [stage])
        assert await asyncio.to_thread(committed, braid_server_shared, topic) == [values]

    with_driver(server_url("kafka", braid_server_shared), test)


def test_what_the_broker_refuses_is_told_and_nothing_hangs(braid_server_shared: ServerProcess) -> None:
    async def test(driver: KafkaDriver) -> None:
        topic, sink = fresh(), fresh("s")
        await driver.create_topic(topic, 1)
        writer, rival = writer_of(driver, sink), writer_of(driver, sink)
        await staged(writer, topic, b"x")
        await rival.begin()
        await writer.send(writer.seal((topic, 0), section(b"y")))
        with pytest.raises(RefusedError) as caught:
            await writer.flush()
        assert caught.value.reason is Refusal.FENCED
        with pytest.raises(RefusedError):
            await writer.send(writer.seal((topic, 0), section(b"z")))
        with pytest.raises(RefusedError, match=f"{topic}/7"):
            await rival.add([(topic, 0), (topic, 7)])
        bad = writer_of(driver, sink, 1, timeout_ms=900_001)
        with pytest.raises(RefusedError) as late:
            await bad.begin()
        assert late.value.code == E.INVALID_TRANSACTION_TIMEOUT
        await writer.close()

    with_driver(server_url("kafka", braid_server_shared), test)


def test_a_writer_that_crashed_fails_what_waits_and_what_comes_later(
    braid_server_shared: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: Any) -> None:
        raise KeyError("a defect")

    async def test(driver: KafkaDriver) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it is told of the crash
        topic = fresh()
        await driver.create_topic(topic, 1)
        writer = writer_of(driver, fresh("s"))
        await staged(writer, topic, b"x")
        monkeypatch.setattr(writer, "_stream", crash)
        await writer.send(writer.seal((topic, 0), section(b"y")))
        with pytest.raises(ClosedError, match=r"crashed: KeyError\('a defect'\)"):
            await writer.flush()
        with pytest.raises(ClosedError, match="crashed"):
            await writer.send(writer.seal((topic, 0), section(b"z")))
        await writer.close()

    with_driver(server_url("kafka", braid_server_shared), test)


async def test_another_broker_commits_no_batches() -> None:
    async with Broker({}, {api.key: api.versions for api in APIS}) as broker:
        broker.script[c.FindCoordinatorRequest] = c.FindCoordinatorResponse(
            coordinators=[c.FindCoordinatorResponseCoordinator(host="127.0.0.1", port=broker.port)]
        )
        driver = driver_of(f"kafka://127.0.0.1:{broker.port}")
        try:
            with pytest.raises(UnsupportedError, match="use at-least-once with brokers other than braidlog"):
                await Sinks(driver, POLICY).state("s")
        finally:
            driver.close()


def test_after_a_refused_batch_all_from_it_on_go_again_in_order() -> None:
    sections = [section(b"%d" % number) for number in range(4 * IN_FLIGHT_MAX)]
    stored: list[bytes] = []
    refused: list[bytes] = []

    async def test() -> None:
        async with Broker() as broker:
            broker.script[c.MetadataRequest] = told(broker)

            def answer(message: d.ProduceRequest) -> d.ProduceResponse:
                """As a log that knows the next number, and leads nothing when the eighth batch comes."""
                batch = bytes(message.topic_data[0].partition_data[0].records or b"")
                if batch != batches_sealed[len(stored)]:
                    return produced(E.OUT_OF_ORDER_SEQUENCE_NUMBER)
                if len(stored) == 7 and not refused:
                    refused.append(batch)
                    return produced(E.NOT_LEADER_OR_FOLLOWER)
                stored.append(batch)
                return produced()

            broker.script[d.ProduceRequest] = answer
            driver = driver_of(f"kafka://127.0.0.1:{broker.port}")
            writer = BatchWriter(driver, Policy(backoff_min=0.001))
            await writer.begin()
            await writer.add([("t", 0)])
            sealed = [writer.seal(("t", 0), each) for each in sections]
            batches_sealed.extend(each.batch for each in sealed)
            for each in sealed:
                await writer.send(each)
            await writer.flush()
            assert stored == batches_sealed
            came = batches(broker)
            again = came.index(batches_sealed[7], came.index(batches_sealed[7]) + 1)
            assert came[again:] == batches_sealed[7:]
            await writer.close()
            driver.close()

    batches_sealed: list[bytes] = []
    run(test)


# -- through a gate, with kills -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [(Key.PRODUCE, 7), (Key.ADD_PARTITIONS_TO_TXN, 1), (Key.COMMIT_BATCH, 1)], ids=str)
@pytest.mark.parametrize("side", ["request", "answer"])
def test_a_node_killed_at_a_message_is_waited_for_and_each_record_counts_once(
    stop: tuple[Key, int], side: Any, tmp_path: Path
) -> None:
    """kill -9 while the message stands at the gate, the same node again, and the same writer goes on."""
    with PartitionLocks() as gate, ServerProcess(tmp_path, *gate.settings) as server:
        gate.server_port = server.ports["kafka"]
        values = [b"%d" % number for number in range(30)]

        async def test(driver: KafkaDriver) -> None:
            await driver.create_topic("t", 2)
            stopped = gate.stop_at(*stop, side=side)

            async def killer() -> None:
                await asyncio.to_thread(stopped.wait)
                await asyncio.to_thread(server.kill)
                gate.cut()  # before there is a node again, who may already have been asked once more
                stopped.open()
                await asyncio.to_thread(server.restart)

            async def work() -> Decision:
                stage = await staged(writer_of(driver, "s"), "t", *values, partitions=2)
                return await Sinks(driver, POLICY).commit("s", 0, [stage])

            decision, _ = await gather(work(), killer())
            assert decision == Decision(0, already=stop[0] is Key.COMMIT_BATCH and side == "answer")
            assert await asyncio.to_thread(committed, server, "t", 2) == [values] * 2

        with_driver(f"kafka://127.0.0.1:{gate.port}", test)


def test_the_next_batch_leaves_as_soon_as_one_is_stored(tmp_path: Path) -> None:
    with PartitionLocks() as gate, ServerProcess(tmp_path, *gate.settings) as server:
        gate.server_port = server.ports["kafka"]
        values = [b"%d" % number for number in range(4 * IN_FLIGHT_MAX)]

        async def test(driver: KafkaDriver) -> None:
            await driver.create_topic("t", 1)
            second = gate.stop_at(Key.PRODUCE, 2, side="answer")

            async def look() -> None:
                await asyncio.to_thread(second.wait)  # the first answer has gone through, and no other has
                await until(lambda: gate.seen[Key.PRODUCE] > IN_FLIGHT_MAX, "another batch leaves")
                assert gate.seen[Key.PRODUCE] == IN_FLIGHT_MAX + 1
                second.open()

            async def work() -> Stage:
                return await staged(writer_of(driver, "s"), "t", *values)

            stage, _ = await gather(work(), look())
            await Sinks(driver, POLICY).commit("s", 0, [stage])
            assert await asyncio.to_thread(committed, server, "t") == [values]

        with_driver(f"kafka://127.0.0.1:{gate.port}", test)


async def gather(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
    return [task.result() for task in tasks]
