"""Kafka's MirrorMaker 2 copies topics, settings and groups' commits from Apache Kafka to a node and back: `make interop`."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from benchmarks.peers import maven
from benchmarks.peers.kafka import free_ports
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from tests.debian import Missing, have
from tests.interop.kafka.checking import RECORDS, until
from tests.interop.kafka.clients import alone
from tests.interop.kafka.servers import IS_FULL, JUDGED, apache, braid_words, certificates

from braidlog.testing.server import ServerProcess

POM = Path(__file__).parents[1] / "mirror" / "pom.xml"
SECONDS_MAX = 240
PARTITIONS = 2
QUIET = {"log_level": 0, "broker.address.family": "v4"}
SETTINGS = {"retention.ms": "3153600000000", "max.message.bytes": "77777"}

# As often as it can be told, and every commit: the figures it comes with are for clusters, not for tests.
OFTEN = {
    "clusters": "apache,braid",
    "replication.factor": "1",
    **{f"{each}.topic.replication.factor": "1" for each in ("checkpoints", "heartbeats", "offset-syncs")},
    **{f"{each}.storage.replication.factor": "1" for each in ("config", "offset", "status")},
    **{f"{each}.interval.seconds": "1" for each in ("emit.checkpoints", "emit.heartbeats", "sync.group.offsets")},
    **{f"refresh.{each}.interval.seconds": "2" for each in ("topics", "groups")},
    "sync.topic.configs.interval.seconds": "2",
    "sync.group.offsets.enabled": "true",
    "offset.lag.max": "0",
    "tasks.max": "2",
}


class Way(NamedTuple):
    """From where, to where, and what: a topic is called after where it came from."""

    source: str
    target: str
    topic: str
    group: str

    @property
    def copy(self) -> str:
        return f"{self.source}.{self.topic}"


WAYS = [Way("apache", "braid", "orders", "billing"), Way("braid", "apache", "events", "auditing")]


class Mirrored(NamedTuple):
    addresses: dict[str, str]
    process: "subprocess.Popen[bytes]"
    log: Path

    def admin(self, cluster: str) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.addresses[cluster], **QUIET})

    def consumer(self, cluster: str, group: str) -> Consumer:
        told = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        return Consumer({"bootstrap.servers": self.addresses[cluster], **QUIET, **told})

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def jars() -> Path:
    try:
        have("mvn", "maven")
    except Missing as reason:
        pytest.skip(str(reason))
    with alone("mirror-maker"):
        return maven.jars(POM, "mirror-maker")


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    """Both brokers with a topic each, and MirrorMaker between them."""
    folder = tmp_path_factory.mktemp("mirror")
    (folder / "apache").mkdir()
    words = braid_words("plain", folder, certificates(folder))
    with apache(folder / "apache") as theirs, ServerProcess(folder / "data", *words) as node:
        addresses = {"apache": theirs.plain, "braid": f"127.0.0.1:{node.ports['kafka']}"}
        for way in WAYS:
            fill(addresses[way.source], way)
        lines = OFTEN | {f"{name}.bootstrap.servers": address for name, address in addresses.items()}
        for way in WAYS:
            arrow = f"{way.source}->{way.target}"
            lines |= {f"{arrow}.enabled": "true", f"{arrow}.topics": way.topic, f"{arrow}.groups": way.group}
        with mirror_maker(folder, lines) as process:
            yield Mirrored(addresses, process, folder / "log")


@contextlib.contextmanager
def mirror_maker(folder: Path, lines: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Ended by kill -9: it has to cope with that."""
    told = folder / "mirror.properties"
    told.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
    java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{jars()}/*", "org.apache.kafka.connect.mirror.MirrorMaker"]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([*java, str(told)], stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def fill(address: str, way: Way) -> None:
    """A topic with records of every form in both partitions."""
    told = {"bootstrap.servers": address, **QUIET}
    admin = AdminClient(told)
    admin.create_topics([NewTopic(way.topic, PARTITIONS, 1, config=SETTINGS)])[way.topic].result(60)
    produce(address, way.topic)


def produce(address: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": address, **QUIET, "enable.idempotence": True})
    for partition in range(PARTITIONS):
        for key, value, headers, timestamp in RECORDS:
            producer.produce(topic, value, key, partition, timestamp=timestamp, headers=headers)
    assert producer.flush(60) == 0


def read(source: Consumer, topic: str, partition: int, count: int) -> list[tuple[object, ...]]:
    source.assign([TopicPartition(topic, partition, 0)])
    found: list[tuple[object, ...]] = []

    def enough() -> bool:
        messages = [message for message in source.consume(count, 0.5) if message.error() is None]
        found.extend((m.offset(), m.key(), m.value(), m.headers() or [], m.timestamp()[1]) for m in messages)
        return len(found) >= count

    until(enough, f"{count} records of {topic}/{partition}", SECONDS_MAX)
    return found


def wait_for_copy(mirrored: Mirrored, way: Way) -> None:
    until(lambda: way.copy in mirrored.admin(way.target).list_topics(timeout=60).topics, way.copy, SECONDS_MAX)


full = pytest.mark.skipif(not IS_FULL or JUDGED != "braid", reason="two Java processes beside the node: make interop")
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.source}-to-{way.target}")


@full
@ways
def test_records_are_copied(mirrored: Mirrored, way: Way) -> None:
    """All that were there, and those that come while it runs: key, value, headers, time and offset."""
    wait_for_copy(mirrored, way)
    produce(mirrored.addresses[way.source], way.topic)
    source = mirrored.consumer(way.target, "reading")
    for partition in range(PARTITIONS):
        wanted = [(offset, *record) for offset, record in enumerate(RECORDS * 2)]
        assert read(source, way.copy, partition, len(wanted)) == wanted
    source.close()
    assert len(mirrored.admin(way.target).list_topics(way.copy, 60).topics[way.copy].partitions) == PARTITIONS


@full
@ways
def test_settings_are_copied(mirrored: Mirrored, way: Way) -> None:
    """Those a topic was made with, and a change: it brings all of them in one request, and one that is not known refuses all."""
    wait_for_copy(mirrored, way)
    source, target = mirrored.admin(way.source), mirrored.admin(way.target)
    change = ConfigEntry("max.message.bytes", "88888", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ConfigResource.Type.TOPIC, way.topic, incremental_configs=[change])
    source.incremental_alter_configs([altered])[altered].result(60)
    wanted = SETTINGS | {"max.message.bytes": "88888"}

    def same() -> bool:
        (asked,) = target.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, way.copy)]).values()
        found = asked.result(60)
        return {name: found[name].value for name in wanted} == wanted

    until(same, f"settings of {way.copy}", SECONDS_MAX)


@full
@ways
def test_what_a_group_has_read_is_copied(mirrored: Mirrored, way: Way) -> None:
    """A group that has read everything goes on at the other cluster where it ended at this one. (Within a topic MirrorMaker
    knows only some offsets, and takes the one before.)"""
    reader, admin = mirrored.consumer(way.source, way.group), mirrored.admin(way.target)
    _, end = reader.get_watermark_offsets(TopicPartition(way.topic, 0), 60)
    reader.commit(offsets=[TopicPartition(way.topic, 0, end)], asynchronous=False)
    reader.close()

    def is_there() -> bool:
        wanted = ConsumerGroupTopicPartitions(way.group, [TopicPartition(way.copy, 0)])
        (asked,) = admin.list_consumer_group_offsets([wanted]).values()
        (found,) = asked.result(60).topic_partitions
        return bool(found.offset == end)

    until(is_there, f"the commit {end} of {way.group}", SECONDS_MAX)


@full
def test_it_had_no_quarrel(mirrored: Mirrored) -> None:
    """No task of its connectors failed, and it is still there."""
    assert mirrored.process.poll() is None, mirrored.said()[-3000:]
    lines = [
        line for line in mirrored.said().splitlines() if "Task is being killed" in line or "UnsupportedVersion" in line
    ]
    assert lines == []


@full
def test_transactions_are_copied_once_although_it_is_killed(mirrored: Mirrored, tmp_path: Path) -> None:
    """Exactly-once support of Connect writes to the node in transactions, and reads only what was committed. The same cluster
    by another name: a Connect of its own."""
    source, target, topic = mirrored.addresses["apache"], mirrored.addresses["braid"], "payments"
    lines = OFTEN | {
        "clusters": "bank,braid",
        "bank.bootstrap.servers": source,
        "braid.bootstrap.servers": target,
        "bank->braid.enabled": "true",
        "bank->braid.topics": topic,
        "bank.consumer.isolation.level": "read_committed",
        "braid.exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{free_ports(1)[0]}",
    }
    admin = mirrored.admin("apache")
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": source, **QUIET, "transactional.id": "bank"})
    producer.init_transactions(60)

    def pay(first: int, *, is_kept: bool = True) -> None:
        producer.begin_transaction()
        for number in range(first, first + 50):
            producer.produce(topic, b"%d" % number if is_kept else b"aborted", partition=0)
        producer.commit_transaction(60) if is_kept else producer.abort_transaction(60)

    reader = mirrored.consumer("braid", "counting")
    copied: list[bytes | None] = []

    def has(count: int) -> bool:
        copied.extend(message.value() for message in reader.consume(500, 0.5) if message.error() is None)
        return len(copied) >= count

    pay(0)
    pay(0, is_kept=False)
    with mirror_maker(tmp_path, lines):
        until(
            lambda: f"bank.{topic}" in mirrored.admin("braid").list_topics(timeout=60).topics, "the copy", SECONDS_MAX
        )
        reader.assign([TopicPartition(f"bank.{topic}", 0, 0)])
        until(lambda: has(50), "the first transaction", SECONDS_MAX)
        pay(50)
    pay(100)
    with mirror_maker(tmp_path, lines):
        pay(0, is_kept=False)
        pay(150)
        until(lambda: has(200), "the last transaction", SECONDS_MAX)
    reader.close()
    assert copied == [b"%d" % number for number in range(200)]
