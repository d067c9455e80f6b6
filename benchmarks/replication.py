"""Processor time of replication over loopback sockets, a leader and its followers in one process: `make bench-replication`.

What is counted is all of it: appending on the leader, reading, Fetch over sockets, checking and appending on each follower, with
`--flush-on-ack` their syncs. Records arrive in batches as producers send them, and are acknowledged when every follower has them.
"""

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from benchmarks.measure import spread
from braidlog.codec.batch.records import encode_batch
from braidlog.model.clock import SystemClock
from braidlog.model.settings import TopicSettings
from braidlog.partition.replica_runner import ReplicaRunner
from braidlog.replication.assignment import Assignment
from braidlog.replication.messages import Answer, Assigned, Complaint, Fetch, Message, Tick
from braidlog.replication.ready import Apply, Done, Proposal
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.server.net.connection_limits import ConnectionLimits, SessionLimits
from braidlog.server.net.listener import Listener
from braidlog.server.net.memory_budget import Budget
from braidlog.server.peers.replica_fetch import PeerMessage, ReplicaPeers
from braidlog.storage.files import OsDisk
from braidlog.storage.group_commit import Flusher
from braidlog.storage.log.partition_log import PartitionLog, create_partition
from braidlog.storage.open_files import FilePool
from braidlog.storage.segment.segment_files import Identity

MB = 1_000_000
LEADER = 1
Key = tuple[bytes, int]


class Node:
    """All partitions of one node; `ReplicaPort` for each by `Port`."""

    def __init__(
        self,
        number: int,
        folder: Path,
        partitions: int,
        runtime: EventLoopRuntime,
        addresses: dict[int, tuple[str, int]],
    ) -> None:
        self.number = number
        self.loop = asyncio.get_running_loop()
        self.peers = ReplicaPeers(number, runtime, self.received, addresses.get)
        self.partitions: dict[Key, ReplicaRunner] = {}
        self.waiting: dict[int, asyncio.Future[None]] = {}
        disk = OsDisk()
        pool = FilePool(disk)
        for index in range(partitions):
            key = (b"0123456789abcdef", index)
            place, identity = str(folder / f"{number}-{index}"), Identity(*key)
            create_partition(disk, place, identity, TopicSettings(), pool, now_ms=0)
            log = PartitionLog(disk, place, identity, TopicSettings(), pool)
            made = self.partitions[key] = ReplicaRunner(log, number, Port(self, key), flush_on_ack=FLUSH_ON_ACK)
            made.replica = made.replica.registered_as(number)

    def received(self, _: int, key: Key, message: PeerMessage) -> None:
        self.partitions[key].step(message)

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            for each in self.partitions.values():
                each.step(Tick())


class Port:
    def __init__(self, node: Node, key: Key) -> None:
        self._node = node
        self._key = key

    def now_ms(self) -> int:
        return int(self._node.loop.time() * 1000)

    wall_ms = now_ms

    @property
    def _partition(self) -> ReplicaRunner:
        return self._node.partitions[self._key]

    def sync(self, end: int, cuts: int) -> None:
        self.beside(lambda: self._partition.synced(end, cuts))

    def begin_epoch(self, epoch: int) -> None:
        self.beside(lambda: self._partition.epoch_started(epoch))

    def send(self, node: int, message: Fetch | Answer | Complaint) -> None:
        self._node.peers.send(node, self._key, message)

    def propose(self, proposal: Proposal) -> None:
        raise AssertionError(proposal)

    def beside(self, work: Callable[[], Message | None]) -> None:
        def done() -> None:
            found = work()
            if found is not None:
                self._partition.step(found)

        self._node.loop.call_soon(done)

    def outcome(self, outcome: Apply) -> None:
        if isinstance(outcome, Done):
            self._node.waiting.pop(outcome.token).set_result(None)


FLUSH_ON_ACK = False


async def run(options: argparse.Namespace, folder: Path) -> tuple[float, float, float]:
    """Processor seconds per GB, MB per second, and processor milliseconds per second while nothing is written."""
    flusher = Flusher(SystemClock())
    runtime = EventLoopRuntime(SystemClock(), flusher)
    addresses: dict[int, tuple[str, int]] = {}
    numbers = range(LEADER, LEADER + 1 + options.followers)
    nodes = [Node(number, folder, options.partitions, runtime, addresses) for number in numbers]
    for node in nodes:
        listener = Listener(
            node.peers.adapter,
            session_limits=SessionLimits(),
            connection_limits=ConnectionLimits(),
            budget=Budget(2**30),
        )
        await listener.start("127.0.0.1", 0)
        addresses[node.number] = "127.0.0.1", listener.port
    assignment = Assignment(
        replicas=tuple(numbers), in_sync=tuple(numbers), leader=LEADER, leader_epoch=1, partition_epoch=1
    )
    for node in nodes:
        for each in node.partitions.values():
            each.step(Assigned(assignment, tuple((number, number) for number in numbers), len(numbers)))
    ticks = [asyncio.ensure_future(node.tick()) for node in nodes]
    leader = nodes[0]
    batch = encode_batch([os.urandom(1000)] * (options.batch_kb * 1000 // 1010), base_timestamp=0)
    count = options.mb * MB // len(batch)
    keys = list(leader.partitions)
    gate = asyncio.Semaphore(options.in_flight)

    async def produce(token: int) -> None:
        async with gate:
            done = leader.waiting[token] = leader.loop.create_future()
            leader.partitions[keys[token % len(keys)]].append(token, batch)
            await done

    await asyncio.sleep(0.5)
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(produce, range(count)))
    took, cost = time.perf_counter() - began, time.process_time() - used
    began_idle, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(options.idle_seconds)
    idle = (time.process_time() - used) / (time.perf_counter() - began_idle)
    for task in ticks:
        task.cancel()
    for node in nodes:
        await node.peers.stop()
    flusher.stop()
    moved = count * len(batch)
    return cost / moved * 1e9, moved / took / MB, idle * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--followers", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--batch-kb", type=int, default=64)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--idle-seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--flush-on-ack", action="store_true")
    options = parser.parse_args()
    global FLUSH_ON_ACK  # noqa: PLW0603 - one setting of a script
    FLUSH_ON_ACK = options.flush_on_ack
    results = []
    for _ in range(options.repeats):
        folder = Path(tempfile.mkdtemp(prefix="bench-replication-"))
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                results.append(runner.run(run(options, folder)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    costs, rates, idles = map(spread, zip(*results, strict=True))
    print(f"leader + {options.followers} followers: {costs:.2f} CPU-s/GB, {rates:.0f} MB/s acknowledged by all")
    print(f"{options.partitions} partitions at rest: {idles:.1f} ms of a processor per second, all nodes together")


if __name__ == "__main__":
    main()
