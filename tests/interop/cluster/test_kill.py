"""kill -9 of a node that leads, under idempotent producers and members of a group of three foreign clients.

At the end nothing acknowledged is lost, nothing is there twice, each partition is in the order in which it was written, and the
group has seen all of it. The node that keeps the groups stays: others cannot take its place.
"""

import subprocess
import threading
from collections.abc import Callable

import pytest
from tests.debian import Missing
from tests.interop.cluster.librdkafka import LibrdkafkaProgram
from tests.interop.kafka.checking import fresh, until
from tests.interop.kafka.clients import java_command
from tests.interop.kafka.go_suites import failover_command
from tests.interop.kafka.test_kill import read_all

from braidlog import connect
from braidlog.testing.cluster_process import ClusterProcess

PARTITIONS = 4
BEFORE_KILL, BEFORE_RESTART, AT_LAST = 1_000, 2_000, 3_000
"""Records acknowledged."""
SECONDS_MAX = 120


class Program:
    """One that prints `acked N`, ends its writing at a line on its stdin, and prints `done SENT SEEN` at last."""

    def __init__(self, command: list[str]) -> None:
        self.acked = 0
        self.done: tuple[int, int] | None = None
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, *numbers = line.split()
            if word == "acked":
                self.acked = int(numbers[0])
            else:
                self.done = int(numbers[0]), int(numbers[1])

    def finish(self) -> tuple[int, int]:
        assert self._process.stdin is not None
        self._process.stdin.write("enough\n")
        self._process.stdin.close()
        assert self._process.wait(SECONDS_MAX) == 0
        self._thread.join(SECONDS_MAX)
        assert self.done is not None
        return self.done

    def close(self) -> None:
        self._process.kill()
        with self._process:
            pass


def of(command: Callable[[], list[str]]) -> Callable[..., Program]:
    return lambda *words: Program([*command(), *words])


PROGRAMS: dict[str, Callable[..., Program | LibrdkafkaProgram]] = {
    "franz-go": of(failover_command),
    "java": of(lambda: [*java_command()[:-1], "Failover"]),
    "librdkafka": LibrdkafkaProgram,
}


@pytest.mark.parametrize("client", PROGRAMS)
def test_a_node_that_leads_is_killed(client: str, cluster: ClusterProcess) -> None:
    topic, address = fresh(client), cluster.url("kafka").removeprefix("kafka://")
    with connect(cluster.url("kafka")) as admin:
        admin.admin.create_topic(topic, partitions=PARTITIONS)
        led = {each.leader for each in admin.admin.describe_cluster().partitions if each.topic == topic}
    killed = max(node for node in led if node is not None)
    assert killed != min(cluster.nodes)
    try:
        program = PROGRAMS[client](address, topic, str(PARTITIONS), fresh("group"))
    except Missing as reason:
        pytest.skip(str(reason))
    try:
        until(lambda: program.acked >= BEFORE_KILL, "records before the kill", SECONDS_MAX)
        cluster[killed].kill()
        until(lambda: program.acked >= BEFORE_RESTART, "records without the node", SECONDS_MAX)
        cluster[killed].restart()
        until(lambda: program.acked >= AT_LAST, "records with the node", SECONDS_MAX)
        sent, seen = program.finish()
    finally:
        program.close()
        if not cluster[killed].is_running:
            cluster[killed].restart()
    found = read_all(address, topic)
    in_order = [int(value) for _, value in sorted(found.items())]
    assert (sorted(in_order), seen) == (list(range(sent)), sent)
    for number in range(PARTITIONS):
        own = [int(value) for (partition, _), value in sorted(found.items()) if partition == number]
        assert own == sorted(own)
