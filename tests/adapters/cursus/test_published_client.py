"""`cursus-client` from PyPI, as it is, against a node in a process of its own."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.cursus.drive import Client, batch, wait_for

from braidlog.testing.server import ServerProcess

cursus = pytest.importorskip("cursus", reason="pip install cursus-client")
from cursus.config import ConsumerConfig, ProducerConfig  # noqa: E402
from cursus.consumer import Consumer  # noqa: E402
from cursus.errors import ConnectionError as CursusError  # noqa: E402
from cursus.eventstore import EventStore  # noqa: E402
from cursus.producer import Producer  # noqa: E402
from cursus.types import Acks, ConsumerMode, Event  # noqa: E402


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("published") / "data") as node:
        yield node


def address(server: ServerProcess) -> str:
    host, port = server.address("cursus")
    return f"{host}:{port}"


@pytest.fixture
def broker(server: ServerProcess) -> str:
    return address(server)


class Reading:
    """A consumer at work in a thread of its own, and what it was given."""

    def __init__(
        self, broker: str, topic: str, group: str, mode: ConsumerMode = ConsumerMode.POLLING, **more: Any
    ) -> None:
        self.consumer = Consumer(
            ConsumerConfig(
                topic=topic,
                brokers=[broker],
                group_id=group,
                mode=mode,
                heartbeat_interval_ms=100,
                auto_commit_interval_s=0.1,
                **more,
            )
        )
        self.messages: list[Any] = []
        self._thread = threading.Thread(target=self.consumer.start, args=(self.messages.append,), daemon=True)
        self._thread.start()

    def payloads(self) -> list[str]:
        return sorted(message.payload for message in self.messages)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        return wait_for(condition, f"{what}; got {len(self.messages)}, has {self.consumer._assignments}")

    def close(self) -> None:
        self.consumer.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


def produce(broker: str, topic: str, payloads: list[str], **more: Any) -> None:
    with Producer(ProducerConfig(topic=topic, brokers=[broker], partitions=2, linger_ms=5, **more)) as producer:
        for number, payload in enumerate(payloads):
            producer.send(payload, key=f"key {number}")
        producer.flush()
        wait_for(lambda: producer.unique_ack_count == len(payloads), "all is acknowledged")


WAYS: dict[str, dict[str, Any]] = {
    "acks 0": {"acks": Acks.NONE},
    "acks 1": {"acks": Acks.ONE},
    "acks all": {"acks": Acks.ALL},
    "idempotent": {"acks": Acks.ALL, "idempotent": True, "batch_size": 7},
    "gzip": {"compression_type": "gzip"},
}


@pytest.mark.parametrize("mode", ConsumerMode)
@pytest.mark.parametrize("way", WAYS)
def test_produce_and_consume(broker: str, way: str, mode: ConsumerMode) -> None:
    topic = f"{way} {mode.value}".replace(" ", "-")
    payloads = [f"payload {number} ü" for number in range(50)]
    produce(broker, topic, payloads, **WAYS[way])
    reading = Reading(broker, topic, f"group-{topic}", mode)
    try:
        reading.wait(lambda: len(reading.messages) >= 50, "every record arrives")
        assert reading.payloads() == sorted(payloads), "each once"
        by_payload = {m.payload: m for m in reading.messages}
        assert by_payload[payloads[3]].key == "key 3"
        assert by_payload[payloads[3]].producer_id.startswith("py-")
        assert by_payload[payloads[3]].seq_num >= 1
        # What comes later comes too.
        produce(broker, topic, ["late"])
        reading.wait(lambda: "late" in reading.payloads(), "a record that was written meanwhile arrives")
    finally:
        reading.close()


@pytest.mark.parametrize("mode", ConsumerMode)
def test_compressed_both_ways(tmp_path: Path, mode: ConsumerMode) -> None:
    with ServerProcess(tmp_path / "data", "--set", "listeners.cursus.compression=gzip") as server:
        produce(address(server), "zipped", ["a" * 1000, "b"], compression_type="gzip")
        reading = Reading(address(server), "zipped", "g", mode, compression_type="gzip")
        try:
            reading.wait(lambda: reading.payloads() == ["a" * 1000, "b"], "both arrive")
        finally:
            reading.close()


def test_an_idempotent_producer_outlives_a_killed_broker(braid_server: ServerProcess) -> None:
    """Every record once, though answers were lost and batches sent again."""
    config = ProducerConfig(
        topic="survivor", brokers=[address(braid_server)], partitions=2, linger_ms=1, idempotent=True, batch_size=5
    )
    payloads = [str(number) for number in range(600)]
    with Producer(config) as producer:
        for number, payload in enumerate(payloads):
            producer.send(payload, key=payload)
            if number in (200, 400):
                wait_for(lambda: producer.unique_ack_count > 10, "some are acknowledged")
                braid_server.kill()
                braid_server.restart()
        wait_for(lambda: producer.unique_ack_count == 600, "all are acknowledged")
    with Client(braid_server) as c:
        stored = [r.payload.decode() for partition in (0, 1) for r in c.consume("survivor", partition)]
    assert sorted(stored) == sorted(payloads)


def test_commits_are_where_the_next_one_goes_on(server: ServerProcess, broker: str) -> None:
    produce(broker, "resumed", [str(number) for number in range(20)])
    first = Reading(broker, "resumed", "resuming")
    first.wait(lambda: len(first.messages) == 20, "all arrive")
    first.close()
    with Client(server) as c:
        told = [c.ask(f"FETCH_OFFSET topic=resumed partition={p} group=resuming") for p in (0, 1)]
        ends = [c.ask(f"LIST_OFFSETS topic=resumed partition={p}") for p in (0, 1)]
        assert sum(int(answer.removeprefix("OK offset=")) for answer in told) == 20, (told, ends)
    produce(broker, "resumed", ["new"])
    second = Reading(broker, "resumed", "resuming", ConsumerMode.STREAMING)
    try:
        second.wait(lambda: second.messages, "the new one arrives")
        assert second.payloads() == ["new"]
    finally:
        second.close()


@pytest.mark.parametrize("mode", ConsumerMode)
def test_two_members_and_a_rebalance(broker: str, mode: ConsumerMode) -> None:
    topic, group = f"shared-{mode.value}", f"sharing-{mode.value}"
    produce(broker, topic, ["before"])
    one = Reading(broker, topic, group, mode, consumer_id="one")
    one.wait(lambda: one.consumer._assignments == [0, 1] and one.messages, "the first has it all")
    two = Reading(broker, topic, group, mode, consumer_id="two")
    try:
        two.wait(lambda: two.consumer._assignments == [1], "the second has its half")
        one.wait(lambda: one.consumer._assignments == [0], "the first has learned of it")
        payloads = [str(number) for number in range(40)]
        produce(broker, topic, payloads)
        wait_for(lambda: set(payloads) <= {*one.payloads(), *two.payloads()}, "both together have everything")
        assert {m.partition for m in two.messages} == {1}
    finally:
        two.close()
    try:
        one.wait(lambda: one.consumer._assignments == [0, 1], "the first has it all again")
        produce(broker, topic, [f"after {number}" for number in range(10)])
        one.wait(lambda: sum(p.startswith("after") for p in one.payloads()) == 10, "and reads it all")
    finally:
        one.close()


def test_a_fenced_producer_stops(server: ServerProcess, broker: str) -> None:
    config = ProducerConfig(topic="fenced", brokers=[broker], partitions=1, linger_ms=5, idempotent=True)
    with Producer(config) as producer, Client(server) as c:
        producer.send("mine")
        producer.flush()
        assert producer.unique_ack_count == 1
        newer = producer._producer_epoch + 1
        c.ack(batch("fenced", b"theirs", idempotent=True, producer=producer._producer_id, epoch=newer))
        producer.send("too late")
        wait_for(producer._done.is_set, "it has understood")
        assert [r.payload for r in c.consume("fenced")] == [b"mine", b"theirs"]


def test_event_store(broker: str) -> None:
    with EventStore(broker, "orders", "shop") as store:
        store.create_topic(4)
        store.create_topic(4)
        assert store.stream_version("o-1") == 0
        assert store.read_stream("o-1").events == []
        for version in (1, 2, 3):
            event = Event(type="Changed", payload=f'{{"n": {version}}}', schema_version=2, metadata='{"by": "a b"}')
            assert store.append("o-1", version, event).version == version
        with pytest.raises(CursusError, match="version_conflict current=3 expected=3"):
            store.append("o-1", 3, Event(type="Changed", payload="x"))
        events = store.read_stream("o-1").events
        assert [(e.version, e.type, e.schema_version) for e in events] == [(v, "Changed", 2) for v in (1, 2, 3)]
        assert (events[1].payload, events[1].metadata) == ('{"n": 2}', '{"by": "a b"}')
        assert [e.version for e in store.read_stream("o-1", from_version=3).events] == [3]
        assert store.read_snapshot("o-1") is None
        store.save_snapshot("o-1", 2, '{"sum": 3}')
        with pytest.raises(CursusError, match="snapshot_version_exceeds_stream current=3"):
            store.save_snapshot("o-1", 4, "x")
        snapshot = store.read_snapshot("o-1")
        assert snapshot is not None
        assert (snapshot.version, snapshot.payload) == (2, '{"sum": 3}')
        data = store.read_stream("o-1")
        assert data.snapshot is not None
        assert (data.snapshot.version, [e.version for e in data.events]) == (2, [3])
    with EventStore(broker, "fenced-plain", "shop") as store:
        produce(broker, "fenced-plain", ["x"])
        with pytest.raises(CursusError, match="event_sourcing_not_enabled"):
            store.append("k", 1, Event(type="T", payload="x"))
