"""Three nodes of ours on this machine, each with its member of etcd: what is measured, and which processes it is.

Knows: how they are started, which process is whose, what each node says of a topic when it is asked itself.
Refuses to know: what is done to them. Invariant: every process that was started is ended, members of etcd too.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from braidlog.server.etcd.etcd_metadata import MEMBER_FOLDER
from braidlog.server.etcd.etcd_process import stop_member
from braidlog.testing.server import ServerProcess, hold_port
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.kafka.connection import ClientConnection
from braidlog.wire.kafka.messages.cluster import MetadataRequest, MetadataRequestTopic
from braidlog.wire.kafka.rows import Message

NUMBERS = (1, 2, 3)
ASK_SECONDS_MAX = 5.0
MEET_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05
METADATA_VERSION = 9
RECEIVE_BYTES = 1 << 18


class PartitionState(NamedTuple):
    """What one node says of a partition."""

    leader: int
    epoch: int
    in_sync: tuple[int, ...]


class RunningNodes:
    """Nodes of one cluster, by number."""

    def __init__(self, nodes: Mapping[int, ServerProcess]) -> None:
        self.nodes = nodes

    @property
    def addresses(self) -> str:
        return ",".join(node.bootstrap() for node in self.nodes.values())

    def partitions(self, number: int, topic: str) -> list[PartitionState]:
        """As this node has it; none if it does not answer, or knows no such topic."""
        return partitions_by(self.nodes[number].address("kafka"), topic)

    def meet(self) -> None:
        """Until each node knows of all: only then topics of three replicas can be made."""
        nothing, until = threading.Event(), time.monotonic() + MEET_SECONDS_MAX
        while True:
            told = [ask(node.address("kafka"), MetadataRequest([])) for node in self.nodes.values()]
            if all(each is not None and len(each.brokers) == len(NUMBERS) for each in told):
                return
            if time.monotonic() > until:
                sys.exit(f"not every node knows of all others after {MEET_SECONDS_MAX:g} s")
            nothing.wait(LOOK_SECONDS)


class Cluster(RunningNodes):
    """Three nodes and their members of etcd."""

    def __init__(self, folder: Path, stack: ExitStack, settings: Sequence[str] = ()) -> None:
        self._client_ports: dict[int, int] = {}
        peer_ports = {}
        for number in NUMBERS:
            held = [hold_port() for _ in range(2)]
            for descriptor, _ in held:
                stack.callback(os.close, descriptor)
            self._client_ports[number], peer_ports[number] = (port for _, port in held)
        members = ",".join(f"{number}=http://127.0.0.1:{port}" for number, port in peer_ports.items())
        nodes: dict[int, ServerProcess] = {}
        super().__init__(nodes)
        for number in NUMBERS:
            values = {
                "node": number,
                "log.level": "error",
                "cluster.etcd": "embedded",
                "cluster.initial_cluster": members,
                "cluster.client_port": self._client_ports[number],
                "cluster.peer_port": peer_ports[number],
            }
            words = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
            nodes[number] = ServerProcess(folder / f"node-{number}", *words, *settings)
            stack.callback(self._end_member, number)
            stack.push(nodes[number])
        with ThreadPoolExecutor(len(NUMBERS)) as pool:
            list(pool.map(ServerProcess.start, self.nodes.values()))
        self.meet()

    @property
    def pids(self) -> list[int]:
        """Of everything that runs: the nodes, and etcd's members."""
        return [node.pid for node in self.nodes.values()] + self.member_pids

    @property
    def member_pids(self) -> list[int]:
        return [self._member_pid(number) for number in NUMBERS]

    def resident_bytes(self) -> list[int]:
        return [node.resident_bytes() for node in self.nodes.values()]

    # -- etcd ----------------------------------------------------------------------------------------------------

    def _member_folder(self, number: int) -> Path:
        return Path(self.nodes[number].data_dir) / MEMBER_FOLDER

    def _member_pid(self, number: int) -> int:
        return int(json.loads((self._member_folder(number) / "process.json").read_bytes())["pid"])

    def _ask_member(self, number: int, call: str, **fields: object) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._client_ports[number]}/v3/maintenance/{call}"
        with urllib.request.urlopen(url, json.dumps(fields).encode(), ASK_SECONDS_MAX) as answer:
            said: dict[str, Any] = json.load(answer)
            return said

    def lead_etcd(self, number: int) -> None:
        """Let the member of this node lead the others."""
        wanted = self._ask_member(number, "status")["header"]["member_id"]
        for each in NUMBERS:
            said = self._ask_member(each, "status")
            if said["leader"] == said["header"]["member_id"] != wanted:
                self._ask_member(each, "transfer-leadership", targetID=wanted)

    def kill_member(self, number: int) -> None:
        os.kill(self._member_pid(number), signal.SIGKILL)

    def _end_member(self, number: int) -> None:
        """A node that was killed has left it running."""
        asyncio.run(stop_member(self._member_folder(number)))


@contextmanager
def cluster(*settings: str, parent: str | None = None) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="bench-cluster-", dir=parent) as folder, ExitStack() as stack:
        yield Cluster(Path(folder), stack, settings)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- what a node says --------------------------------------------------------------------------------------------


class Line:
    """One connection to a node, ours or another's, with one question at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = ClientConnection("bench")
        self._socket = socket.create_connection(address, ASK_SECONDS_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, question: Message, version: int = METADATA_VERSION) -> Any:  # noqa: ANN401 - each has its own
        """The answer; None if there is none."""
        connection = self._connection
        with contextlib.suppress(OSError):
            self._socket.sendall(connection.request(question, version))
            while data := self._socket.recv(RECEIVE_BYTES):
                connection.receive(data)
                said = connection.next_event()
                if said is not NEED_DATA:
                    return said.message
        return None


def ask(address: tuple[str, int], question: Message, version: int = METADATA_VERSION) -> Any:  # noqa: ANN401 - each has its own
    """The answer of one node over a connection of its own; None if there is none."""
    with contextlib.suppress(OSError), Line(address) as line:
        return line.ask(question, version)
    return None


def partitions_by(address: tuple[str, int], topic: str) -> list[PartitionState]:
    return states_of(ask(address, about(topic)))


def about(topic: str) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)


def states_of(said: Any) -> list[PartitionState]:  # noqa: ANN401 - the answer to `about`, or None
    found = () if said is None else said.topics[0].partitions
    ordered = sorted(found, key=lambda each: int(each.partition_index))
    return [PartitionState(each.leader_id, each.leader_epoch, tuple(sorted(each.isr_nodes))) for each in ordered]
