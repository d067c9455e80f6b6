"""Fail-over of a group's coordinator: how long its member's heartbeats and commits are not answered when that node is killed.

Knows: a group of two members of librdkafka that poll, so that they heartbeat; and a client without a past, which asks the nodes
that are left who coordinates the group, and sends a heartbeat of one of those members: answered without an error, the member
goes on in its generation. Counted is the time from the kill to that answer, and to the first commit of librdkafka's that is
acknowledged. At the end no member has been given other partitions than at the beginning, and the last commit is there.
"""

import contextlib
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cluster_nodes import Cluster, ask
from benchmarks.failover import LOOK_SECONDS, QUIET, SECONDS_MAX, percentile_99
from benchmarks.measure import spread
from braidlog.wire.kafka.messages.cluster import FindCoordinatorRequest
from braidlog.wire.kafka.messages.groups import DescribeGroupsRequest, HeartbeatRequest

TOPIC, GROUP = "coordinated", "coordinated"
MEMBERS = 2
FIND_VERSION, HEARTBEAT_VERSION, DESCRIBE_VERSION = 3, 4, 5
TARGET_SECONDS = 1.0


class Member:
    """Polls on a thread of its own; `assigned` counts how often it was given partitions."""

    def __init__(self, addresses: str) -> None:
        own = {"bootstrap.servers": addresses, "group.id": GROUP, "enable.auto.commit": False}
        self.consumer = Consumer(QUIET | own)
        self.assigned = 0
        self.consumer.subscribe([TOPIC], on_assign=self._on_assign)

    def _on_assign(self, _: Consumer, __: list[TopicPartition]) -> None:
        self.assigned += 1

    def commit(self, offset: int) -> bool:
        wanted = [TopicPartition(each.topic, each.partition, offset) for each in self.consumer.assignment()]
        with contextlib.suppress(KafkaException):
            told = self.consumer.commit(offsets=wanted, asynchronous=False) or []
            return bool(told) and all(each.error is None for each in told)
        return False


def coordinator(nodes: Cluster, but: int = 0) -> int:
    """As the nodes that are asked say; 0 if nobody knows one."""
    for number, node in nodes.nodes.items():
        said = None if number == but else ask(node.address("kafka"), FindCoordinatorRequest(GROUP), FIND_VERSION)
        if said is not None and not said.error_code and said.node_id != but:
            return int(said.node_id)
    return 0


def _generation(nodes: Cluster, node: int) -> tuple[str, int]:
    """A member's id, and the generation that its coordinator has (a heartbeat in another is refused)."""
    address = nodes.nodes[node].address("kafka")
    said = ask(address, DescribeGroupsRequest([GROUP]), DESCRIBE_VERSION)
    member = str(said.groups[0].members[0].member_id)
    for generation in range(1, 100):
        if _heartbeat(nodes, node, member, generation):
            return member, generation
    sys.exit("no generation of the group is known")


def _heartbeat(nodes: Cluster, node: int, member: str, generation: int) -> bool:
    said = ask(nodes.nodes[node].address("kafka"), HeartbeatRequest(GROUP, generation, member), HEARTBEAT_VERSION)
    return said is not None and not said.error_code


class Heartbeats(threading.Thread):
    """Of a member, sent by a client that asks anew who coordinates its group."""

    def __init__(self, nodes: Cluster, killed: int, member: str, generation: int) -> None:
        super().__init__(daemon=True)
        self._nodes, self._killed, self._member, self._generation = nodes, killed, member, generation
        self._began = time.monotonic()
        self.seconds = 0.0

    def run(self) -> None:
        nothing = threading.Event()
        while not self.seconds and time.monotonic() < self._began + SECONDS_MAX:
            node = coordinator(self._nodes, self._killed)
            if node and _heartbeat(self._nodes, node, self._member, self._generation):
                self.seconds = time.monotonic() - self._began
            nothing.wait(LOOK_SECONDS)


def coordinators(nodes: Cluster, count: int) -> None:
    admin = AdminClient(QUIET | {"bootstrap.servers": nodes.addresses})
    for made in admin.create_topics([NewTopic(TOPIC, MEMBERS, 3)]).values():
        made.result(SECONDS_MAX)
    members = [Member(nodes.addresses) for _ in range(MEMBERS)]

    def poll() -> None:
        for each in members:
            each.consumer.poll(LOOK_SECONDS)

    _until(lambda: all(len(each.consumer.assignment()) == 1 for each in members), poll)
    assigned = [each.assigned for each in members]
    anew: list[float] = []
    committed: list[float] = []
    for number in range(1, count + 1):
        _until(partial(_all_commit, members, 2 * number), poll)
        _until(lambda: len(nodes.partitions(next(iter(nodes.nodes)), TOPIC)[0].in_sync) == len(nodes.nodes), poll)
        killed = coordinator(nodes)
        heartbeats = Heartbeats(nodes, killed, *_generation(nodes, killed))
        began = time.monotonic()
        os.kill(nodes.nodes[killed].pid, signal.SIGKILL)
        heartbeats.start()
        _until(partial(_all_commit, members, 2 * number + 1), poll)
        committed.append(time.monotonic() - began)
        heartbeats.join()
        anew.append(heartbeats.seconds or SECONDS_MAX)
        nodes.nodes[killed].wait()
        nodes.nodes[killed].restart()
        nodes.meet()
        print(
            f"  {number}: node {killed} coordinated; heartbeat after {anew[-1]:.2f} s, librdkafka's commit {committed[-1]:.2f}"
        )
    lost = [each.assigned for each in members] != assigned
    offsets = {
        each.offset for each in members[0].consumer.committed([TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)])
    }
    for each in members:
        each.consumer.close()
    print(
        f"kill -9 of a group's coordinator, {count} times, until a member goes on (target: median {TARGET_SECONDS:g} s)"
    )
    for who, times in (("a client that asks anew", anew), ("librdkafka's commit", committed)):
        verdict = "reached" if statistics.median(times) <= TARGET_SECONDS else "MISSED"
        print(f"  {who}: {spread(times):.2f} s, p99 {percentile_99(times):.2f}: {verdict}")
    if lost or offsets != {2 * count + 1}:
        sys.exit(f"members were assigned anew: {lost}; commits {offsets}, wanted {2 * count + 1}")
    print("  nobody was assigned anew, and every acknowledged commit is there", flush=True)


def _all_commit(members: list[Member], offset: int) -> bool:
    return all(each.commit(offset) for each in members)


def _until(condition: Callable[[], bool], meanwhile: Callable[[], None]) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not condition():
        if time.monotonic() > until:
            sys.exit(f"the group has not gone on within {SECONDS_MAX:g} s")
        meanwhile()
