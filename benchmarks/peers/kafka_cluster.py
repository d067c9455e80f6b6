"""Three nodes of Apache Kafka in KRaft mode, each a broker and a controller: what three of ours are measured against.

Knows: how they find each other. Everything else is Kafka's default, three replicas of its own topics included.
Invariant: every process that was started is ended.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from benchmarks.peers.kafka import KafkaPeer, Quorum, free_ports, new_identity

NUMBERS = (1, 2, 3)
REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}


class KafkaCluster:
    """`with KafkaCluster() as cluster:` gives three nodes that are ready."""

    def __init__(self) -> None:
        quorum = Quorum(new_identity(), dict(zip(NUMBERS, free_ports(len(NUMBERS)), strict=True)))
        self.nodes = {
            number: KafkaPeer(settings=REPLICATED | {"node.id": str(number)}, quorum=quorum) for number in NUMBERS
        }
        self._stack = ExitStack()

    @property
    def addresses(self) -> str:
        return ",".join(node.address() for node in self.nodes.values())

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self.nodes.values()]

    def resident_bytes(self) -> list[int]:
        return [node.resident_bytes() for node in self.nodes.values()]

    def __enter__(self) -> Self:
        with ExitStack() as stack, ThreadPoolExecutor(len(NUMBERS)) as pool:
            # None is ready before most of them are there.
            for started in [pool.submit(node.__enter__) for node in self.nodes.values()]:
                stack.push(started.result())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
