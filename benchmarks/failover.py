"""Fail-over of three nodes: how long nobody acknowledges when the node that leads is killed, stopped, or dies with etcd's leader.

Knows: two clients. librdkafka (confluent-kafka) as it is, but idempotent and with `acks = all`, under load all the time; and one
without a past, which asks who leads from the fault on and hands a record to the node that does. A fail-over is the time from the
fault to the first acknowledgement of a record that was handed over after it. A try counts only if the node that met the fault
said itself, just before, that it leads, and those left say afterwards that another one leads in a later epoch. At the end
everything is read again: an acknowledged record that is not there, or there twice, ends the run with an error.

librdkafka has limits of its own: it asks for the new leader again after `retry.backoff.ms` (100 ms). Of a leader that is stopped
it hears nothing at all, and finds out by its own time-out for requests: 30 s, here `PATIENCE_MS`, looked at once a second.
"""

import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cluster_nodes import NUMBERS, Cluster, PartitionState, RunningNodes, ask
from benchmarks.measure import spread
from braidlog.codec.batch.records import encode_batch
from braidlog.model.clock import SystemClock
from braidlog.wire.kafka.messages import data as kafka

TOPIC = "failover"
SECONDS_MAX = 60.0
PACE_SECONDS = 0.005
TRIES = 3
"""For each fail-over that is wanted: another may lead by the time of the fault."""
QUIET = {"log_level": 0, "broker.address.family": "v4"}
PATIENCE_MS = 300
LOOK_SECONDS = 0.05
ACK_MS_MAX = 2_000
PRODUCE_VERSION = 9
NOBODYS = -1
"""The number of records that are not the load's."""


class Load:
    """One record after another, each remembered with where it was acknowledged."""

    def __init__(self, addresses: str) -> None:
        patience = {"request.timeout.ms": PATIENCE_MS, "socket.timeout.ms": PATIENCE_MS}
        own = {"bootstrap.servers": addresses, "enable.idempotence": True, "linger.ms": 0}
        self._producer = Producer(QUIET | own | patience)
        self._next = 0
        self.acknowledged: dict[int, int | None] = {}
        """By the record's number: its offset. None: a retry was acknowledged, and librdkafka did not keep where the record is."""
        self.errors: list[str] = []

    def send(self) -> int:
        """Hand over one record; its number."""
        number, self._next = self._next, self._next + 1
        self._producer.produce(TOPIC, str(number).encode(), partition=0, on_delivery=self._delivered)
        self._producer.poll(PACE_SECONDS)
        return number

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        value = message.value()
        assert value is not None
        self.acknowledged[int(value)] = message.offset()

    def until_acknowledged(self, first: int) -> None:
        """Until a record with this number or a later one is."""
        until = time.monotonic() + SECONDS_MAX
        while not any(number in self.acknowledged for number in range(first, self._next)):
            if time.monotonic() > until:
                sys.exit(f"nothing was acknowledged for {SECONDS_MAX:g} s")
            self.send()

    def finish(self) -> None:
        self._producer.flush(SECONDS_MAX)


# -- faults ------------------------------------------------------------------------------------------------------

Mend = Callable[[], object]
Of = TypeVar("Of", bound=RunningNodes)


class Fault(NamedTuple, Generic[Of]):
    name: str
    happen: Callable[[Of, int], Mend]
    """To that node; what it returns makes it whole again."""
    targets: tuple[float, float]
    """Seconds: the median, and of a hundred the last but one."""
    prepare: Callable[[Of, int], object] = lambda *_: None


def _killed(nodes: RunningNodes, number: int) -> Mend:
    node = nodes.nodes[number]
    os.kill(node.pid, signal.SIGKILL)
    return lambda: (node.wait(), node.restart())


def _stopped(nodes: RunningNodes, number: int) -> Mend:
    pid = nodes.nodes[number].pid
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def _killed_with_etcd(nodes: Cluster, number: int) -> Mend:
    nodes.kill_member(number)
    return _killed(nodes, number)


FAULTS: dict[str, Fault[Cluster]] = {
    "kill": Fault("kill -9", _killed, (0.5, 2.0)),
    "stop": Fault("SIGSTOP", _stopped, (1.0, 2.5)),
    "etcd": Fault("kill -9 of node and etcd's leader", _killed_with_etcd, (1.2, 2.5), Cluster.lead_etcd),
}


# -- one after another -------------------------------------------------------------------------------------------


def settle(nodes: RunningNodes, load: Load) -> PartitionState:
    """Send until all nodes say that the same one leads, and that all replicas are in sync."""
    until = time.monotonic() + SECONDS_MAX
    while True:
        told = [nodes.partitions(number, TOPIC) for number in NUMBERS]
        if told[0] and all(each == told[0] for each in told):
            state = told[0][0]
            if state.leader in NUMBERS and state.in_sync == NUMBERS:
                return state
        if time.monotonic() > until:
            sys.exit(f"the replicas are not in sync after {SECONDS_MAX:g} s; the nodes say: {told}")
        load.send()


def _next_leader(nodes: RunningNodes, before: PartitionState) -> PartitionState | None:
    """Who took over from the one that led before; None if it was nobody."""
    states = [nodes.partitions(number, TOPIC) for number in NUMBERS if number != before.leader]
    newest = max((state[0] for state in states if state), key=lambda each: each.epoch, default=before)
    return newest if newest.epoch > before.epoch and newest.leader != before.leader else None


class Election(threading.Thread):
    """Asks those that are left who leads, as soon as the fault has happened, and hands that node a record: a client without a
    past. What a client with connections and requests under way takes longer is its own."""

    def __init__(self, nodes: RunningNodes, before: PartitionState) -> None:
        super().__init__(daemon=True)
        self._nodes = nodes
        self._before = before
        self._began = time.monotonic()
        self.after: PartitionState | None = None
        self.elected = self.served = 0.0
        """Seconds until another one led, and until it acknowledged."""

    def run(self) -> None:
        nothing = threading.Event()
        while not self.served and time.monotonic() < self._began + SECONDS_MAX:
            state = _next_leader(self._nodes, self._before)
            if state is None:
                nothing.wait(LOOK_SECONDS)
                continue
            if self.after is None:
                self.after, self.elected = state, time.monotonic() - self._began
            said = ask(self._nodes.nodes[state.leader].address("kafka"), record_for(TOPIC, [0]), PRODUCE_VERSION)
            if said is not None and not said.responses[0].partition_responses[0].error_code:
                self.served = time.monotonic() - self._began


def record_for(topic: str, partitions: Iterable[int]) -> kafka.ProduceRequest:
    """One that is nobody's, with `acks = all`."""
    batch = encode_batch([str(NOBODYS).encode()], base_timestamp=SystemClock().now_ms())
    wanted = [kafka.ProduceRequestPartition(number, batch) for number in partitions]
    return kafka.ProduceRequest(None, -1, ACK_MS_MAX, [kafka.ProduceRequestTopic(topic, partition_data=wanted)])


def _leads(nodes: RunningNodes, state: PartitionState) -> bool:
    """Whether the node that leads says so itself, now."""
    return [each[:2] for each in nodes.partitions(state.leader, TOPIC)] == [state[:2]]


def failovers(nodes: Of, fault: Fault[Of], count: int) -> None:
    admin = AdminClient(QUIET | {"bootstrap.servers": nodes.addresses})
    for made in admin.create_topics([NewTopic(TOPIC, 1, 3)]).values():
        made.result(SECONDS_MAX)
    load, tries = Load(nodes.addresses), 0
    took: list[float] = []
    served: list[float] = []
    back: list[float] = []
    while len(took) < count:
        tries += 1
        if tries > count * TRIES:
            sys.exit(f"{fault.name}: of {tries} tries {len(took)} met the node that led")
        before = settle(nodes, load)
        fault.prepare(nodes, before.leader)
        load.until_acknowledged(load.send())
        if not _leads(nodes, before):
            continue
        began, election = time.monotonic(), Election(nodes, before)
        mend = fault.happen(nodes, before.leader)
        election.start()
        load.until_acknowledged(load.send())
        seconds = time.monotonic() - began
        election.join()
        after = election.after
        mend()
        mended = time.monotonic()
        settle(nodes, load)
        if after is None:
            print(f"  not counted: node {before.leader} met the fault, and nobody leads in its place", flush=True)
            continue
        took.append(seconds)
        served.append(election.served)
        back.append(time.monotonic() - mended)
        print(
            f"  {len(took)}: node {before.leader} led in epoch {before.epoch}; node {after.leader} in epoch {after.epoch} after "
            f"{election.elected:.2f} s, acknowledged after {election.served:.2f}, librdkafka's after {seconds:.2f}; "
            f"in sync again {back[-1]:.2f} s after it was back",
            flush=True,
        )
    load.finish()
    _check(nodes.addresses, load)
    _tell(fault, served, took, back)
    print(f"  {len(load.acknowledged)} records acknowledged, all of them read again, each once", flush=True)


def percentile_99(values: list[float]) -> float:
    return sorted(values)[min(len(values) * 99 // 100, len(values) - 1)]


def _tell(fault: Fault[Of], served: list[float], took: list[float], back: list[float]) -> None:
    print(f"{fault.name} of the leader, {len(took)} times, until the next acknowledgement")
    for who, times in (("to a client that asks anew", served), ("to librdkafka", took)):
        marks = [("median", statistics.median(times)), ("p99", percentile_99(times))]
        verdicts = [
            f"{name} {value:.2f} s, target {target:g}: {'reached' if value <= target else 'MISSED'}"
            for (name, value), target in zip(marks, fault.targets, strict=True)
        ]
        print(f"  {who}: {spread(times):.2f} s; {'; '.join(verdicts)}")
    print(f"  in sync again after {spread(back):.2f} s")


def _check(addresses: str, load: Load) -> None:
    """Read everything, and compare."""
    consumer = Consumer(QUIET | {"bootstrap.servers": addresses, "group.id": "check", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=SECONDS_MAX)
    seen: dict[int, list[int]] = {}
    at = 0
    while at < end:
        message = consumer.poll(SECONDS_MAX)
        if message is None or message.error():
            sys.exit(f"reading stopped at offset {at} of {end}")
        value, offset = message.value(), message.offset()
        assert value is not None
        assert offset is not None
        seen.setdefault(int(value), []).append(offset)
        at = offset + 1
    consumer.close()
    wrong = [number for number, offset in load.acknowledged.items() if not _is_right(offset, seen.get(number, []))]
    if wrong or load.errors:
        sys.exit(f"lost, moved or twice: {wrong[:10]} of {len(load.acknowledged)}; errors: {load.errors[:3]}")


def _is_right(offset: int | None, seen: list[int]) -> bool:
    return len(seen) == 1 if offset is None else seen == [offset]
