"""One table of three real nodes: each turns the partitions that it leads; records are rows once though leaders are killed."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy.exc import SQLAlchemyError
from tests.cluster.transactional import PARTITIONS, committed, made, transactional
from tests.console import waiting
from tests.server.etcd.members import members

from braidlog import NewRecord, connect
from braidlog.client.blocking import Client, Producer
from braidlog.tables.catalog import offsets_of, open_catalog
from braidlog.testing.cluster_process import ClusterProcess

SECONDS_MAX = 600
SETTINGS = {"braidlog.table": "json", "segment.bytes": "20000", "braidlog.table.lag.ms": "300"}
PER_PARTITION = 40


class Shared(NamedTuple):
    """What the nodes have in common."""

    cluster: ClusterProcess
    folder: Path

    @property
    def catalog_file(self) -> Path:
        return self.folder / "catalog.db"

    def table(self) -> Table | None:
        try:
            return open_catalog("braidlog", {"type": "sql", "uri": f"sqlite:///{self.catalog_file}"}).load_table(
                "topics.shared"
            )
        except (NoSuchTableError, SQLAlchemyError):  # not yet, or somebody commits
            return None

    def offsets(self) -> dict[int, int]:
        table = self.table()
        return {} if table is None else offsets_of(table.properties)

    def written(self, partition: int) -> set[str]:
        """Names of a partition's files, rows or not."""
        return {path.name for path in self.folder.glob(f"topics/shared-*/data/{partition}-*.parquet")}

    @contextmanager
    def without_commits(self) -> Iterator[None]:
        """The catalog is read, and takes no change."""
        catalog = sqlite3.connect(self.catalog_file, timeout=SECONDS_MAX, isolation_level=None)
        try:
            catalog.execute("BEGIN IMMEDIATE")
            yield
            catalog.execute("ROLLBACK")
        finally:
            catalog.close()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    folder = tmp_path / "warehouse"
    folder.mkdir()
    (tmp_path / "etcd").mkdir()
    settings = tmp_path / "node.toml"
    catalog = f'{{ type = "sql", uri = "sqlite:///{folder}/catalog.db" }}'
    settings.write_text(f'[tables]\nwarehouse = "{folder}"\ncatalog = {catalog}\ncheck_seconds = 0.05\n')
    with (
        members(tmp_path / "etcd", 1) as etcd,
        ClusterProcess(tmp_path / "nodes", etcd[0].url, "--config", str(settings)) as cluster,
    ):
        yield Shared(cluster, folder)


def send(producer: Producer, round_: int) -> None:
    """To every partition, with a field of its own that no record had before: all nodes add columns at once."""
    sent = [
        delivery
        for partition in range(PARTITIONS)
        for delivery in producer.send_many(
            "shared",
            [
                NewRecord(json.dumps({"n": n, f"f{round_}": n, f"of{partition}": round_}).encode())
                for n in range(PER_PARTITION)
            ],
            partition=partition,
        )
    ]
    for each in sent:
        each.result(SECONDS_MAX)


def led_by(client: Client, node: int) -> list[int]:
    partitions = client.admin.describe_cluster().partitions
    return [each.partition for each in partitions if each.topic == "shared" and each.leader == node]


def test_each_record_is_a_row_once_though_leaders_are_killed(shared: Shared) -> None:
    """One between its files and their commit, another after its commit, with a transaction that is aborted then."""
    cluster = shared.cluster
    with connect(cluster.url("kafka")) as client:
        made(client, "shared", SETTINGS)
        producer = client.producer(acks="all", idempotent=True)
        send(producer, 0)
        waiting.until(lambda: len(shared.offsets()) == PARTITIONS, SECONDS_MAX)

        (first, *_) = led_by(client, 1)
        with shared.without_commits():
            before = shared.written(first)
            send(producer, 1)
            waiting.until(lambda: shared.written(first) - before, SECONDS_MAX)
            cluster[1].kill()
        cluster[1].restart()

        (second, *_) = led_by(client, 2)
        begun = shared.offsets().get(second, 0)
        send(producer, 2)
        waiting.until(lambda: shared.offsets().get(second, 0) > begun, SECONDS_MAX)
        aborted = transactional(cluster, "never")
        aborted.begin_transaction()
        for number in range(PARTITIONS):
            aborted.produce("shared", b'{"never": 1}', partition=number)
        aborted.flush(SECONDS_MAX)
        cluster[2].kill()
        aborted.abort_transaction(SECONDS_MAX)
        send(producer, 3)
        cluster[2].restart()

        expected = committed(cluster, "shared", 4 * PARTITIONS * PER_PARTITION)
        ends = {
            number: max(each.offset() for each in expected if each.partition() == number)
            for number in range(PARTITIONS)
        }
        waiting.until(lambda: all(shared.offsets().get(each, 0) > at for each, at in ends.items()), SECONDS_MAX)
    table = waiting.until(shared.table, SECONDS_MAX)
    rows = table.scan().to_arrow().to_pylist()
    found = sorted((row["partition"], row["offset"], row["value"]) for row in rows)
    assert found == sorted((each.partition(), each.offset(), each.value()) for each in expected)
    for row in rows:
        value = json.loads(row["value"])
        assert {name: row[name] for name in value} == value, "columns that nodes added at the same time are all there"
