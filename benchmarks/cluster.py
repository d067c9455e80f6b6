"""Three nodes of a cluster on this machine: how long nobody acknowledges when the leader dies, and what they cost at rest.

Knows: real processes with an embedded etcd each; librdkafka (confluent-kafka) as it is, but idempotent and with `acks = all`.
A fail-over is the time from the signal to the first acknowledgement of a record that was handed over after it. At the end
everything is read again: an acknowledged record that is not there, or there twice, ends the run with an error.

The limit of a fail-over is the client's: librdkafka asks for the new leader again after `retry.backoff.ms` (100 ms). Of a leader
that is stopped it hears nothing at all, and finds out by its own time-out for requests: 30 s, here `PATIENCE_MS`.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.measure import spread
from braidlog.testing.server import ServerProcess, hold_port

NUMBERS = (1, 2, 3)
TOPIC = "failover"
SECONDS_MAX = 60.0
PACE_SECONDS = 0.005
QUIET = {"log_level": 0, "broker.address.family": "v4"}
PATIENCE_MS = 300
TARGETS = {"kill -9": (0.5, 2.0), "SIGSTOP": (1.0, 2.5)}
"""Seconds: the median, and of a hundred the last but one."""


class Cluster:
    """Three nodes and their members of etcd."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        ports = {}
        for number in NUMBERS:
            ports[number] = [hold_port() for _ in range(2)]
            for descriptor, _ in ports[number]:
                stack.callback(os.close, descriptor)
        peers = ",".join(f"{number}=http://127.0.0.1:{ports[number][1][1]}" for number in NUMBERS)
        self.nodes = {
            number: ServerProcess(folder / f"node-{number}", *_settings(number, peers, [port for _, port in held]))
            for number, held in ports.items()
        }
        for node in self.nodes.values():
            stack.push(node)
        with ThreadPoolExecutor(len(NUMBERS)) as pool:
            list(pool.map(ServerProcess.start, self.nodes.values()))

    @property
    def addresses(self) -> str:
        return ",".join(f"127.0.0.1:{node.ports['kafka']}" for node in self.nodes.values())


def _settings(number: int, peers: str, ports: list[int]) -> list[str]:
    values = {
        "node": number,
        "log.level": "error",
        "cluster.etcd": "embedded",
        "cluster.initial_cluster": peers,
        "cluster.client_port": ports[0],
        "cluster.peer_port": ports[1],
    }
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


@contextmanager
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        yield Cluster(Path(folder), stack)


# -- fail-over ---------------------------------------------------------------------------------------------------


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


def _state(admin: AdminClient) -> tuple[int, tuple[int, ...]]:
    """Who leads the partition, and who is in sync."""
    partition = admin.list_topics(TOPIC, timeout=SECONDS_MAX).topics[TOPIC].partitions[0]
    return partition.leader, tuple(sorted(partition.isrs))


def _settle(admins: list[AdminClient], load: Load) -> int:
    """Send until three clients, which asked different nodes first, are told that all replicas are in sync; the leader."""
    until = time.monotonic() + SECONDS_MAX
    while True:
        told = {_state(admin) for admin in admins}
        leader, in_sync = min(told)
        if len(told) == 1 and leader in NUMBERS and in_sync == NUMBERS:
            return leader
        if time.monotonic() > until:
            sys.exit(f"the replicas are not in sync after {SECONDS_MAX:g} s; the nodes say: {told}")
        load.send()


def _killed(node: ServerProcess) -> Callable[[], object]:
    os.kill(node.pid, signal.SIGKILL)
    return lambda: (node.wait(), node.restart())


def _stopped(node: ServerProcess) -> Callable[[], object]:
    os.kill(node.pid, signal.SIGSTOP)
    return lambda: os.kill(node.pid, signal.SIGCONT)


FAULTS = {"kill -9": _killed, "SIGSTOP": _stopped}


def failovers(nodes: Cluster, fault: str, count: int) -> None:
    admins = [AdminClient(QUIET | {"bootstrap.servers": each}) for each in nodes.addresses.split(",")]
    for made in admins[0].create_topics([NewTopic(TOPIC, 1, 3)]).values():
        made.result(SECONDS_MAX)
    load, took = Load(nodes.addresses), []
    for _ in range(count):
        leader = _settle(admins, load)
        load.until_acknowledged(load.send())
        began = time.monotonic()
        mend = FAULTS[fault](nodes.nodes[leader])
        load.until_acknowledged(load.send())
        took.append(time.monotonic() - began)
        mend()
    _settle(admins, load)
    load.finish()
    _check(nodes.addresses, load)
    middle, last = TARGETS[fault]
    ordered = sorted(took)
    p99 = ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
    print(
        f"{fault} of the leader, {count} times, until the next acknowledgement: {spread(took):.2f} s, p99 {p99:.2f} s"
    )
    for name, value, target in (("median", statistics.median(took), middle), ("p99", p99, last)):
        print(f"  {name} {value:.2f} s, target {target:g}: {'reached' if value <= target else 'MISSED'}")
    print(f"  {len(load.acknowledged)} records acknowledged, all of them read again, each once")


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


# -- at rest -----------------------------------------------------------------------------------------------------


def at_rest(nodes: Cluster, partitions: int, seconds: float) -> None:
    admin = AdminClient(QUIET | {"bootstrap.servers": nodes.addresses})
    for made in admin.create_topics([NewTopic("rest", partitions, 3)]).values():
        made.result(SECONDS_MAX)
    nothing = threading.Event()
    nothing.wait(seconds)  # what the creation left to do is done meanwhile
    before = {number: _processor_seconds(node.pid) for number, node in nodes.nodes.items()}
    nothing.wait(seconds)
    shares = [(_processor_seconds(node.pid) - before[number]) / seconds for number, node in nodes.nodes.items()]
    resident = [node.resident_bytes() / 1e6 for node in nodes.nodes.values()]
    print(f"at rest with {partitions} partitions of three replicas: {spread(resident):.0f} MB a node (target 80),")
    print(f"  {spread([100 * share for share in shares]):.1f} % of a core a node")


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="kill, stop, rest; all without any")
    parser.add_argument("--count", type=int, default=20, help="fail-overs of each kind")
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to look at nodes at rest")
    asked = parser.parse_args()
    parts = asked.parts or ["kill", "stop", "rest"]
    for part, fault in (("kill", "kill -9"), ("stop", "SIGSTOP")):
        if part in parts:
            with cluster() as nodes:
                failovers(nodes, fault, asked.count)
    if "rest" in parts:
        with cluster() as nodes:
            at_rest(nodes, asked.partitions, asked.seconds)


if __name__ == "__main__":
    main()
