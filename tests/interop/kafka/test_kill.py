# mypy: disable-error-code="no-untyped-call"
"""kill -9 under load: idempotent producers and a committing group of librdkafka, the node killed again and again.

At the end nothing acknowledged is lost, nothing is there twice, everything stands where its acknowledgement said, and the group
went on from its commits each time. `INTEROP_BROKER=apache` puts Apache Kafka through the same.
"""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.kafka import KafkaPeer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.interop.kafka.checking import fresh, until
from tests.interop.kafka.servers import IS_FULL, JUDGED, QUICK

from braidlog.testing.server import ServerProcess

KILLS = 4 if IS_FULL else 1
PARTITIONS = 4
BETWEEN_KILLS = 3000  # records acknowledged
IN_FLIGHT_MAX = 400
SECONDS_MAX = 120
QUIET = {"log_level": 0, "broker.address.family": "v4", "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50}


@contextlib.contextmanager
def node(folder: Path) -> Iterator[tuple[Any, str]]:
    if JUDGED == "apache":
        with KafkaPeer(heap="512m", settings=QUICK | {"num.partitions": str(PARTITIONS)}) as peer:
            yield peer, peer.address()
        return
    with ServerProcess(folder / "data", "--set", f"listeners.kafka.partitions={PARTITIONS}") as server:
        yield server, f"127.0.0.1:{server.ports['kafka']}"


class Writer:
    """One idempotent producer; `acked` is what the node said it has, and where."""

    def __init__(self, address: str, topic: str, name: str) -> None:
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.refused: list[str] = []
        self.sent = 0
        self._topic, self._name = topic, name
        self._stop = threading.Event()
        settings = {"enable.idempotence": True, "acks": "all", "linger.ms": 2, "batch.num.messages": 50}
        self._producer = Producer(
            {"bootstrap.servers": address, **QUIET, **settings, "message.timeout.ms": SECONDS_MAX * 1000}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            assert message.value() not in self.acked
            self.acked[message.value()] = (message.partition(), message.offset())
        else:
            self.refused.append(str(error))

    def _run(self) -> None:
        while not self._stop.is_set():
            if self.sent - len(self.acked) - len(self.refused) < IN_FLIGHT_MAX:
                value = b"%s-%d" % (self._name.encode(), self.sent)
                self._producer.produce(
                    self._topic, value, partition=self.sent % PARTITIONS, on_delivery=self._delivered
                )
                self.sent += 1
                self._producer.poll(0)
            else:
                self._producer.poll(0.05)
        self._producer.flush(SECONDS_MAX)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive(), "it could not get rid of its records"


class Reader:
    """One member of the group: reads, commits, and checks that it begins where the group had committed."""

    def __init__(self, address: str, topic: str, group: str, shared: "Progress") -> None:
        self.faults: list[str] = []
        self._shared = shared
        self._begun: set[int] = set()
        self._stop = threading.Event()
        settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        settings |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300}
        self._consumer = Consumer({"bootstrap.servers": address, **QUIET, **settings})
        self._consumer.subscribe([topic], on_assign=self._assigned, on_lost=self._assigned)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._begun -= {each.partition for each in partitions}

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = [each for each in self._consumer.consume(200, 0.1) if each.error() is None]
            for message in messages:
                self._see(message)
            if messages:
                self._commit(messages)
        self._consumer.close()

    def _see(self, message: Any) -> None:
        shared, partition, offset = self._shared, message.partition(), message.offset()
        with shared.lock:
            if partition not in self._begun:
                self._begun.add(partition)
                low, high = shared.committed[partition], shared.attempted[partition]
                if not low <= offset <= high:
                    self.faults.append(f"began partition {partition} at {offset}, committed was {low} to {high}")
            shared.seen[partition].add(offset)

    def _commit(self, messages: list[Any]) -> None:
        ends: dict[int, int] = {}
        for message in messages:
            ends[message.partition()] = max(ends.get(message.partition(), 0), message.offset() + 1)
        with self._shared.lock:
            for partition, end in ends.items():
                # A commit whose answer is lost may hold or not: the next start may be anywhere between.
                self._shared.attempted[partition] = max(self._shared.attempted[partition], end)
        wanted = [TopicPartition(messages[0].topic(), partition, end) for partition, end in ends.items()]
        try:
            answers = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return  # the node is away, or the group is being settled anew
        with self._shared.lock:
            for answer in answers:
                if answer.error is None:
                    self._shared.committed[answer.partition] = answer.offset
                    self._shared.attempted[answer.partition] = answer.offset

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive()


class Progress:
    """What the members of the group know together."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.committed: dict[int, int] = defaultdict(int)
        self.attempted: dict[int, int] = defaultdict(int)
        self.seen: dict[int, set[int]] = defaultdict(set)


def read_all(address: str, topic: str) -> dict[tuple[int, int], bytes]:
    """Every record of the topic by its place."""
    consumer = Consumer(
        {"bootstrap.servers": address, **QUIET, "group.id": fresh("judge"), "enable.auto.commit": False}
    )
    places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    ends = {place.partition: consumer.get_watermark_offsets(place, timeout=30)[1] for place in places}
    consumer.assign(places)
    found: dict[tuple[int, int], bytes] = {}
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < sum(ends.values()) and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            place = (message.partition(), message.offset())
            assert place not in found
            found[place] = message.value()
    consumer.close()
    assert len(found) == sum(ends.values()), "offsets without records"
    return found


@pytest.fixture
def judged_node(tmp_path: Path) -> Iterator[tuple[Any, str]]:
    with node(tmp_path) as found:
        yield found


def test_kill_under_load(judged_node: tuple[Any, str]) -> None:
    server, address = judged_node
    topic, group, progress = fresh("killed"), fresh("group"), Progress()
    writers = [Writer(address, topic, f"w{number}") for number in range(2)]
    readers = [Reader(address, topic, group, progress) for _ in range(2)]

    def acked() -> int:
        return sum(len(writer.acked) for writer in writers)

    for number in range(KILLS):
        goal = acked() + BETWEEN_KILLS
        until(lambda goal=goal: acked() >= goal, f"records before kill {number}", SECONDS_MAX)  # type: ignore[misc]
        until(lambda: sum(progress.committed.values()) > 0, "a commit", SECONDS_MAX)
        server.kill()
        server.restart()
    goal = acked() + BETWEEN_KILLS
    until(lambda: acked() >= goal, "records after the last kill", SECONDS_MAX)
    for writer in writers:
        writer.finish()
    until(lambda: sum(progress.committed.values()) >= acked(), "the group to commit everything", SECONDS_MAX)
    for reader in readers:
        reader.finish()

    assert [writer.refused for writer in writers] == [[], []]
    assert [writer.sent for writer in writers] == [len(writer.acked) for writer in writers]
    found = read_all(address, topic)
    promised = {place: value for writer in writers for value, place in writer.acked.items()}
    lost = {place: value for place, value in promised.items() if found.get(place) != value}
    assert lost == {}, f"{len(lost)} acknowledged and not where they should be"
    assert len(set(found.values())) == len(found), "records twice in the log"
    assert set(found) == set(promised), "records nobody sent"
    _check_order(found)
    assert [reader.faults for reader in readers] == [[], []]
    assert {number: len(seen) for number, seen in progress.seen.items()} == {
        number: sum(place[0] == number for place in found) for number in range(PARTITIONS)
    }
    print(f"{len(found)} records, {KILLS} kills")


def _check_order(found: dict[tuple[int, int], bytes]) -> None:
    """Each producer's records of a partition stand in the order it sent them."""
    last: dict[tuple[int, bytes], int] = {}
    for (partition, _), value in sorted(found.items()):
        name, _, number = value.partition(b"-")
        assert last.get((partition, name), -1) < int(number)
        last[partition, name] = int(number)
