"""What the nodes of a cluster say of their partitions, and what is on their disks: full sets, equal logs."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.adapters.kafka.client import Client as KafkaClient
from tests.attack.clients import TROUBLE
from tests.nemesis.nodes import NUMBERS, NemesisCluster, NemesisNode

from braidlog.codec.batch.header import HEADER_BYTES, read_header
from braidlog.storage.segment.segment_files import DATA_START
from braidlog.wire.kafka.messages import cluster as kafka_cluster
from braidlog.wire.kafka.messages import topics as kafka_topics

FULL_SECONDS_MAX = 300.0
LOOK_SECONDS = 0.1
NO_ERROR, TOPIC_EXISTS = 0, 36
RETRIED = {5, 7, 41}
"""LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT, NOT_CONTROLLER: a client asks again."""
AFTER_FAULT = "after-fault-"
"""What the names of topics begin with that are created after a fault, with a replica on every node."""
MISSING_MAX = 5
"""How many partitions are named in a message."""


class Batch(NamedTuple):
    """What is the same on every replica; offsets and epoch are not covered by the checksum."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int


def wait_until(missing: Callable[[], list[str]], seconds: float = FULL_SECONDS_MAX) -> list[str]:
    """Until nothing is missing; what still is when the time is over."""
    deadline = time.monotonic() + seconds
    while (found := missing()) and time.monotonic() < deadline:
        threading.Event().wait(LOOK_SECONDS)
    return found


def missing_replicas(cluster: NemesisCluster) -> list[str]:
    """In the words of every node: partitions without a leader, or without all of their replicas in sync."""
    found: list[str] = []
    leaders: dict[str, set[int]] = {}
    for node in cluster.nodes.values():
        if not node.is_running:
            found.append(f"node {node.number} has ended")
            continue
        try:
            topics = ask_metadata(node)
        except TROUBLE as error:
            found.append(f"node {node.number} does not answer: {error!r}"[:200])
            continue
        for topic in topics:
            for partition in topic.partitions:
                name = f"{topic.name}/{partition.partition_index}"
                leaders.setdefault(name, set()).add(partition.leader_id)
                in_sync = sorted(partition.isr_nodes)
                wanted = NUMBERS if topic.name.startswith(AFTER_FAULT) else partition.replica_nodes
                if partition.leader_id not in NUMBERS or len(in_sync) < len(wanted):
                    found.append(f"node {node.number}: {name} is led by {partition.leader_id}, in sync are {in_sync}")
    found += [f"{name} is led by {sorted(told)}" for name, told in leaders.items() if len(told) > 1]
    return found[:MISSING_MAX] + ([f"and {len(found) - MISSING_MAX} more"] if len(found) > MISSING_MAX else [])


def ask_metadata(node: NemesisNode) -> list[Any]:
    with KafkaClient(node) as client:
        return list(client.ask(kafka_cluster.MetadataRequest(None)).topics)


def create_topics(cluster: NemesisCluster, placed: Mapping[str, Sequence[int]]) -> None:
    """Of one partition, each on the nodes that are named, the first of which leads; as soon as all are there."""
    missing = set(placed)

    def create() -> list[str]:
        rows = [
            kafka_topics.CreateTopicsRequestTopic(
                name, -1, -1, [kafka_topics.CreateTopicsRequestAssignment(0, list(placed[name]))]
            )
            for name in sorted(missing)
        ]
        try:
            with KafkaClient(cluster[1]) as client:
                answer = client.ask(kafka_topics.CreateTopicsRequest(rows, 60_000))
        except TROUBLE as error:
            return [repr(error)]
        for each in answer.topics:
            if each.error_code in (NO_ERROR, TOPIC_EXISTS):
                missing.discard(each.name)
        return [f"{each.name}: {each.error_message}" for each in answer.topics if each.name in missing]

    refused = wait_until(create)
    assert not refused, refused


def create_replicated_topic(cluster: NemesisCluster, name: str, factor: int) -> list[str]:
    """Create a topic of one partition through any node, as clients do that retry; return the refusals that they take as final."""
    nodes = itertools.cycle(cluster.nodes.values())
    final: list[str] = []

    def create() -> list[str]:
        row = kafka_topics.CreateTopicsRequestTopic(name, num_partitions=1, replication_factor=factor)
        try:
            with KafkaClient(next(nodes)) as client:
                (answer,) = client.ask(kafka_topics.CreateTopicsRequest([row], 60_000)).topics
        except TROUBLE as error:
            return [f"{name} cannot be created: {error!r}"]
        refusal = [f"{name} is refused: {answer.error_code} {answer.error_message}"]
        if answer.error_code in RETRIED:
            return refusal
        final.extend(refusal if answer.error_code not in (NO_ERROR, TOPIC_EXISTS) else [])
        return []

    return [*wait_until(create), *final]


def leader_of(cluster: NemesisCluster, topic: str) -> NemesisNode:
    """When all agree."""
    for each in ask_metadata(cluster[1]):
        if each.name == topic:
            return cluster[each.partitions[0].leader_id]
    raise AssertionError(f"there is no topic {topic}")


def different_logs(folders: Mapping[int, Path], topics: Iterable[str]) -> list[str]:
    """Topics whose logs are not the same, batch by batch, on all nodes. `folders`: node → where its data is."""
    wanted = set(topics)
    logs = {number: _logs(folder, wanted) for number, folder in folders.items()}
    return [difference for topic in sorted(wanted) for difference in _compare(topic, logs)]


def _compare(topic: str, logs: dict[int, dict[str, list[Batch]]]) -> Iterator[str]:
    first, *others = logs
    for other in others:
        one, two = logs[first].get(topic), logs[other].get(topic)
        if one is None or two is None:
            yield f"{topic} is not on node {first if one is None else other}"
        elif one != two:
            place = next((at for at, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), None)
            at = min(len(one), len(two)) if place is None else place
            yield f"{topic}: batch {at} is {one[at : at + 1]} on node {first} and {two[at : at + 1]} on node {other}"


def _logs(folder: Path, topics: set[str]) -> dict[str, list[Batch]]:
    found = {}
    for place in sorted((folder / "topics").iterdir()):
        name = topic_name(place)
        if name in topics:
            files = sorted((place / "0000").glob("*.log"))
            found[name] = [batch for file in files for batch in _batches(file.read_bytes())]
    return found


def topic_name(folder: Path) -> str:
    """Of a topic's folder; empty if it says none."""
    for slot in ("topic.a", "topic.b"):
        data = (folder / slot).read_bytes() if (folder / slot).exists() else b""
        if (start := data.find(b'{"name"')) >= 0:
            meta, _ = json.JSONDecoder().raw_decode(data[start:].decode("utf-8", "replace"))
            return str(meta["name"])
    return ""


def _batches(data: bytes) -> Iterator[Batch]:
    position = DATA_START
    while len(data) - position >= HEADER_BYTES and any(data[position : position + HEADER_BYTES]):
        header = read_header(data, position)
        yield Batch(header.base_offset, header.next_offset, header.leader_epoch, header.crc)
        position += header.size_bytes
