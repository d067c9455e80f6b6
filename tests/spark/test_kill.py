"""Jobs go on while one node of three after the other is killed: consume, transform and produce in librdkafka's transactions,
Spark from topic to topic, Spark from a topic to a Delta table. Every input counts once; at least once where no more is asked.

Kills come by progress, not by time: each when all jobs have carried some inputs of its turn, and the next are on their way.
`make nemesis-jobs` does the same for minutes.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from tests.cluster.transactional import PARTITIONS, Job, made, seen
from tests.nemesis.jobs import Query, copied, in_delta, rows, wrong
from tests.server.etcd.members import members

from braidlog import connect
from braidlog.client.blocking import Client, Delivery
from braidlog.testing.cluster_process import NODES, ClusterProcess
from braidlog.testing.server import ServerProcess

SECONDS_MAX = 600.0
"""Until all jobs have carried a turn's inputs: three nodes, etcd and Spark may have a tenth of a core."""
TURN = 36
AT_ONCE = 12
"""How many of them are in one transaction or one micro-batch, at most."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    with members(tmp_path, 1) as (etcd,), ClusterProcess(tmp_path / "nodes", etcd.url) as nodes:
        yield nodes


def at_least_once(cluster: ClusterProcess) -> Callable[[DataFrame], DataStreamWriter]:
    return lambda rows: copied(cluster, "repeated")(rows).option("delivery", "at_least_once")


class Jobs:
    """All of them, at work on the same inputs."""

    def __init__(self, cluster: ClusterProcess, client: Client, spark: SparkSession, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._job = Job(cluster, AT_ONCE)
        self._stack.callback(self._job.close)
        self._transformed = 0
        writers = {"copied": copied(cluster, "copied"), "repeated": at_least_once(cluster), "delta": in_delta(folder)}
        self._queries = []
        for name, writer in writers.items():
            query = Query(spark, writer, cluster, folder / name, maxOffsetsPerTrigger=AT_ONCE)
            self._stack.callback(query.end)
            self._queries.append(query)
        self._consumer = client.consumer()
        for topic in ("copied", "repeated"):
            self._consumer.assign(topic, start="earliest")
        self._found: dict[str, set[bytes | None]] = {"copied": set(), "repeated": set()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def go_on_until(self, count: int) -> None:
        """All of them have carried so many inputs."""
        deadline = time.monotonic() + SECONDS_MAX
        while min((carried := self._step()).values()) < count:
            assert time.monotonic() < deadline, f"{carried} of {count} inputs"

    def _step(self) -> dict[str, int]:
        self._transformed += self._job.step()
        for query in self._queries:
            query.step()
        for record in self._consumer.poll(timeout=0.01):
            self._found[record.topic].add(record.value)
        found = {topic: len(values) for topic, values in self._found.items()}
        return {"transformed": self._transformed, "delta": len(rows(self._folder)), **found}


def test_every_input_counts_once_while_one_node_after_the_other_is_killed(
    cluster: ClusterProcess, spark: SparkSession, tmp_path: Path
) -> None:
    with connect(f"{cluster.url('kafka')}?isolation=read_committed") as client:
        for topic in ("in", "out", "copied", "repeated"):
            made(client, topic)
        producer = client.producer(acks="all", idempotent=True)
        sent: list[Delivery] = []

        def send_a_turn() -> None:
            numbers = range(len(sent), len(sent) + TURN)
            sent.extend(producer.send("in", b"%d" % number, partition=number % PARTITIONS) for number in numbers)

        with Jobs(cluster, client, spark, tmp_path) as jobs, ThreadPoolExecutor(1) as pool:
            start: Future[ServerProcess] | None = None
            send_a_turn()
            for victim in NODES:
                jobs.go_on_until(len(sent) - TURN + 1)
                if start is not None:
                    start.result()
                send_a_turn()
                cluster[victim].kill()
                start = pool.submit(cluster[victim].restart)
            for each in sent:
                each.result()
            jobs.go_on_until(len(sent))
    found = {topic: seen(cluster, topic, len(sent)) for topic in ("in", "out", "copied", "repeated")}
    wanted = Counter(b"%d" % number for number in range(len(sent)))
    assert set(found["repeated"]) == set(wanted)
    once = {"in": found["in"], "transformed": found["out"], "copied": found["copied"], "delta": rows(tmp_path)}
    for name, values in once.items():
        assert [*wrong(name, values, wanted)] == []
