"""A stream from one topic to another goes on while a node of three is killed, in the middle of its job: rows are counted."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.server.etcd.members import members

from braidlog import connect
from braidlog.client.blocking import Client
from braidlog.testing.cluster_process import ClusterProcess

SECONDS_MAX = 120.0
PARTITIONS, ROWS = 3, 300
KILLED = 3
"""It leads some partition of each topic; the one that keeps groups and transactions is not killed."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    with members(tmp_path, 1) as (etcd,), ClusterProcess(tmp_path / "nodes", etcd.url) as nodes:
        yield nodes


def write(client: Client, first: int) -> None:
    """So many rows more, on all partitions."""
    producer = client.producer(acks="all", idempotent=True)
    sent = [producer.send("in", b"%d" % number, partition=number % PARTITIONS) for number in range(first, first + ROWS)]
    for each in sent:
        each.result()


class Reader:
    """What the query has written, as far as it was read."""

    def __init__(self, client: Client, query: StreamingQuery) -> None:
        self._query = query
        self._consumer = client.consumer()
        self._consumer.assign("out", start="earliest")
        self.values: list[bytes | None] = []

    def wait_for(self, count: int) -> None:
        """So many different rows."""
        deadline = time.monotonic() + SECONDS_MAX
        while len(set(self.values)) < count:
            self.values += [record.value for record in self._consumer.poll(timeout=0.5)]
            assert self._query.isActive, self._query.exception()
            assert time.monotonic() < deadline, f"{len(set(self.values))} of {count} rows"


def test_a_stream_goes_on_when_a_leader_is_killed(cluster: ClusterProcess, spark: SparkSession, tmp_path: Path) -> None:
    servers = cluster.url("kafka").removeprefix("kafka://")
    with connect(cluster.url("kafka")) as client:
        for topic in ("in", "out"):
            client.admin.create_topic(topic, partitions=PARTITIONS)
        write(client, 0)
        query = (
            spark.readStream.format("braidlog")
            .options(servers=servers, topic="in", startingOffsets="earliest")
            .load()
            .writeStream.format("braidlog")
            .options(servers=servers, topic="out", delivery="at_least_once", checkpointLocation=str(tmp_path / "at"))
            .start()
        )
        try:
            reader = Reader(client, query)
            reader.wait_for(ROWS)
            write(client, ROWS)
            cluster[KILLED].kill()
            write(client, 2 * ROWS)
            reader.wait_for(3 * ROWS)
        finally:
            query.stop()
        assert set(reader.values) == {b"%d" % number for number in range(3 * ROWS)}
