"""`python -m tests.nemesis.jobs`: jobs that count every input once, while one node after the other is killed.

Each has topics and three nodes of its own, with a real etcd: consume, transform and produce in librdkafka's transactions; Spark
from topic to topic; Spark from a topic to a Delta table; or nothing but the inputs, which are written all the while. Every so
many seconds a node is killed and started again; a Spark query that gives up is started again from its checkpoint, as whoever runs
one does. At last every input must be there, once.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from tests.cluster.transactional import PARTITIONS, Job, addresses, committed, made, seen
from tests.server.etcd.members import members

from braidlog import connect
from braidlog.spark import session
from braidlog.testing.cluster_process import NODES, ClusterProcess
from braidlog.testing.server import ServerProcess

ENDED_SECONDS_MAX = 300.0
"""From the last input until all are through."""
PAUSE_SECONDS = 0.05
LOOK_SECONDS = 1.0
LINES_SHOWN = 200
FOUND = 3


class Inputs(threading.Thread):
    """Writes one after the other, each acknowledged by the in-sync replicas, until it is told to end."""

    def __init__(self, cluster: ClusterProcess) -> None:
        super().__init__(name="inputs", daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": addresses(cluster), "enable.idempotence": True, "linger.ms": 2, "log_level": 0}
        )
        self._failed: list[str] = []
        self.count = 0
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.wait(PAUSE_SECONDS):
            self._producer.produce("in", b"%d" % self.count, partition=self.count % PARTITIONS, on_delivery=self._told)
            self._producer.poll(0)
            self.count += 1
        self._producer.flush()

    def _told(self, error: object, _: object) -> None:
        if error is not None:
            self._failed.append(str(error))

    def end(self) -> int:
        """How many there are; all of them are in the log."""
        self.enough.set()
        self.join(ENDED_SECONDS_MAX)
        assert not self.is_alive(), "inputs are not acknowledged"
        assert not self._failed, self._failed
        return self.count


class Kills(threading.Thread):
    """One node after the other, or all nodes together, every so many seconds; each is restarted at once."""

    def __init__(self, cluster: ClusterProcess, every: float, *, together: bool) -> None:
        super().__init__(name="kills", daemon=True)
        self._cluster = cluster
        self._every = every
        self._together = together
        self.count = 0
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.wait(self._every):
            victims = [
                self._cluster[node] for node in (NODES if self._together else NODES[self.count % len(NODES) :][:1])
            ]
            for victim in victims:
                victim.kill()
            with ThreadPoolExecutor(len(victims)) as pool:  # each waits for its own process
                list(pool.map(ServerProcess.restart, victims))
            self.count += 1


IsEnough = Callable[[], bool]
"""Whether no more inputs are wanted."""


def until_all_are_through(inputs: Inputs, is_enough: IsEnough, step: Callable[[], int]) -> int:
    """Call `step`, which tells how many inputs are through, until there are enough and all are; return how many those are."""
    ended, wanted = 0.0, -1
    while True:
        through = step()
        if wanted < 0 and is_enough():
            wanted, ended = inputs.end(), time.monotonic()
        if 0 <= wanted <= through:
            return wanted
        is_late = wanted >= 0 and time.monotonic() - ended > ENDED_SECONDS_MAX
        assert not is_late, f"{through} of {inputs.count} inputs are through"


def transform(cluster: ClusterProcess, inputs: Inputs, is_enough: IsEnough, _: Path) -> None:
    """Consume, transform, produce: the group's offsets and the outputs in one transaction of librdkafka."""
    job, through = Job(cluster, at_once=50), 0

    def step() -> int:
        nonlocal through
        through += job.step()
        return through

    try:
        until_all_are_through(inputs, is_enough, step)
    finally:
        job.close()


def nothing(_: ClusterProcess, inputs: Inputs, is_enough: IsEnough, __: Path) -> None:
    """The inputs alone: librdkafka's idempotent producer."""

    def step() -> int:
        inputs.enough.wait(PAUSE_SECONDS)
        return inputs.count

    until_all_are_through(inputs, is_enough, step)


class Query:
    """A streaming query, which is started again from its checkpoint when it has given up."""

    def __init__(
        self,
        spark: SparkSession,
        writer: Callable[[DataFrame], DataStreamWriter],
        cluster: ClusterProcess,
        checkpoint: Path,
        **options: str | int,
    ) -> None:
        """`options`: of the source, beside where it reads."""
        rows = spark.readStream.format("braidlog").options(
            servers=addresses(cluster), topic="in", startingOffsets="earliest", **options
        )
        self._writer = writer(rows.load()).option("checkpointLocation", str(checkpoint))
        self._query: StreamingQuery = self._writer.start()
        self.begun_anew = 0

    def step(self) -> None:
        if not self._query.isActive:
            print(f"  the query gave up: {str(self._query.exception())[:300]}", flush=True)
            self.begun_anew += 1
            self._query = self._writer.start()

    def end(self) -> None:
        self._query.stop()
        print(f"  the query was started again {self.begun_anew} times", flush=True)


@contextmanager
def running(writer: Callable[[DataFrame], DataStreamWriter], cluster: ClusterProcess, folder: Path) -> Iterator[Query]:
    """One query, in a Spark of its own."""
    spark = session("jobs", "local[2]", log_level="OFF", **{"spark.driver.memory": "1g"})
    query = Query(spark, writer, cluster, folder / "checkpoint")
    try:
        yield query
    finally:
        query.end()
        spark.stop()


def copied(cluster: ClusterProcess, topic: str = "out") -> Callable[[DataFrame], DataStreamWriter]:
    """Each row once, to another topic."""
    return lambda rows: rows.writeStream.format("braidlog").options(servers=addresses(cluster), topic=topic)


def in_delta(folder: Path) -> Callable[[DataFrame], DataStreamWriter]:
    """Each row once, to a Delta table."""
    options = {"table": "delta", "path": str(folder / "table")}
    return lambda rows: rows.select("value").writeStream.format("braidlog-lake").options(**options)


def to_topic(cluster: ClusterProcess, inputs: Inputs, is_enough: IsEnough, folder: Path) -> None:
    """Spark reads a topic and writes another, each row once."""
    with (
        running(copied(cluster), cluster, folder) as query,
        connect(f"{cluster.url('kafka')}?isolation=read_committed") as client,
    ):
        consumer, found = client.consumer(), set[bytes | None]()
        consumer.assign("out", start="earliest")

        def step() -> int:
            query.step()
            found.update(record.value for record in consumer.poll(timeout=0.5))
            return len(found)

        until_all_are_through(inputs, is_enough, step)


def to_delta(cluster: ClusterProcess, inputs: Inputs, is_enough: IsEnough, folder: Path) -> None:
    """Spark reads a topic and writes a Delta table, each row once."""
    with running(in_delta(folder), cluster, folder) as query:

        def step() -> int:
            query.step()
            threading.Event().wait(LOOK_SECONDS)
            return len(rows(folder))

        until_all_are_through(inputs, is_enough, step)


def rows(folder: Path) -> list[bytes | None]:
    """Of the table."""
    table = str(folder / "table")
    if not DeltaTable.is_deltatable(table):
        return []
    found: list[bytes | None] = DeltaTable(table).to_pyarrow_table(columns=["value"])["value"].to_pylist()
    return found


JOBS = {"inputs": nothing, "transform": transform, "spark-topic": to_topic, "spark-delta": to_delta}


def run(
    name: str, seconds: float, every: float, folder: Path, kills_min: int = 0, *, together: bool = False
) -> list[str]:
    """What the job did wrong, with inputs for so long and until so many nodes were killed."""
    etcd = folder / "etcd"
    etcd.mkdir()
    with members(etcd, 1) as started, ClusterProcess(folder / "nodes", started[0].url, prefix=name) as cluster:
        with connect(cluster.url("kafka")) as client:
            for topic in ("in", "out"):
                made(client, topic)
        inputs, kills, until = Inputs(cluster), Kills(cluster, every, together=together), time.monotonic() + seconds
        inputs.start()
        kills.start()
        try:
            JOBS[name](cluster, inputs, lambda: time.monotonic() > until and kills.count >= kills_min, folder)
        except Exception:
            for number, node in cluster.nodes.items():
                print(f"node {number}:", *node.errors().splitlines()[-LINES_SHOWN:], sep="\n  ", flush=True)
            raise
        finally:
            kills.enough.set()
            kills.join()
        print(f"{name}: {inputs.count} inputs, {kills.count} kills", flush=True)
        wanted = Counter(b"%d" % number for number in range(inputs.count))
        found = [*wrong("the inputs", seen(cluster, "in", inputs.count), wanted)]
        topics = ["in"] if JOBS[name] is nothing else ["in", "out"]
        if "out" in topics:
            outputs = rows(folder) if name == "spark-delta" else seen(cluster, "out", inputs.count)
            found += wrong(name, outputs, wanted)
        return found + ([_places(cluster, topics, inputs.count)] if found else [])


def wrong(name: str, values: Sequence[bytes | None], wanted: Counter[bytes]) -> Iterator[str]:
    """What is not there, or not once."""
    found = Counter((value or b"").removeprefix(b"done ") for value in values)
    for word, which in (("lost", wanted - found), ("more than once, or no inputs", found - wanted)):
        if which:
            yield f"{name}: {len(which)} {word}: {sorted(which)[:5]}"


def _places(cluster: ClusterProcess, topics: Sequence[str], count: int) -> str:
    """Where values are that occur twice."""
    places: dict[bytes, list[str]] = {}
    for each in chain.from_iterable(committed(cluster, topic, count) for topic in topics):
        at = f"{each.topic()}/{each.partition()} at {each.offset()}, time {each.timestamp()[1]}"
        places.setdefault(f"{each.topic()} {each.value()!r}".encode(), []).append(at)
    return str({value: at for value, at in places.items() if len(at) > 1})


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs that count every input once, while nodes are killed.")
    parser.add_argument("--jobs", default=",".join(JOBS), help="names with commas between")
    parser.add_argument("--seconds", type=float, default=300, help="how long each has inputs")
    parser.add_argument("--every", type=float, default=20, help="so many seconds are between two kills")
    parser.add_argument("--kills", type=int, default=0, help="inputs go on until so many nodes were killed, too")
    parser.add_argument("--together", action="store_true", help="each kill is of all nodes at once")
    asked = parser.parse_args()
    names = asked.jobs.split(",")
    if unknown := set(names) - set(JOBS):
        parser.error(f"no job is called {', '.join(sorted(unknown))}: there are {', '.join(JOBS)}")
    findings = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="braidlog-jobs-") as folder:
            findings += run(name, asked.seconds, asked.every, Path(folder), asked.kills, together=asked.together)
    print(*(f"FOUND {finding}" for finding in findings), sep="\n")
    return FOUND if findings else 0


if __name__ == "__main__":
    sys.exit(main())
