"""Keys in slots on three real nodes: `braid kv` and Spark find one store at any of them, and go on when one is killed."""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from tests import waiting
from tests.server.etcd.members import members

from braidlog import kv
from braidlog.cli import main
from braidlog.kv.replicated.slots import SLOTS
from braidlog.spark import connections
from braidlog.testing.cluster_process import NODES, ClusterProcess
from braidlog.wire.mayfly.messages import Consistency

FORMAT = "braidlog-kv"
KEYS = 12
SECONDS = "60"
SECONDS_MAX = 300.0
"""Three nodes, etcd and Spark may have one core."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("slots")
    with (
        members(folder, 1) as (etcd,),
        ClusterProcess(folder, etcd.url, "--set", "kv.feed_linger_ms=5") as started,
    ):
        yield started
        connections.close_idle()


until = partial(waiting.until, seconds=SECONDS_MAX)


def braid(*words: str) -> Result:
    return CliRunner().invoke(main, [*words])


def done(*words: str) -> str:
    """What a command says, asked until it is well: a slot may have no leader yet, or too few replicas."""
    result = braid(*words)
    deadline = time.monotonic() + SECONDS_MAX
    while result.exit_code:
        assert time.monotonic() < deadline, f"{' '.join(words)}: {result.output} {result.exception!r}"
        result = braid(*words)
    return result.stdout


def address(nodes: ClusterProcess, number: int, dialect: str) -> str:
    return f"{dialect}://127.0.0.1:{nodes[number].ports[dialect]}"


def status(nodes: ClusterProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done("cluster", "status", "--server", nodes.url("kafka"), "-o", "json"))
    return found


def snapshot(spark: SparkSession, nodes: ClusterProcess) -> dict[bytes, bytes]:
    feed = nodes.url("kafka").removeprefix("kafka://")
    rows = spark.read.format(FORMAT).options(servers=nodes.url("mayfly"), feed=feed).load().collect()
    assert len({bytes(row.key) for row in rows}) == len(rows), "a key is there once"
    return {bytes(row.key): bytes(row.value) for row in rows}


def test_any_node_tells_of_all_keys(nodes: ClusterProcess) -> None:
    for at in range(KEYS):
        url = address(nodes, NODES[at % 3], "mayfly")
        done("kv", "set", f"k{at}", "first", "--url", url, "--timeout", SECONDS)
        done("kv", "set", f"k{at}", "last", "--url", url, "--timeout", SECONDS, "--consistency", "all")
    for number in NODES:
        told = json.loads(done("kv", "stats", "--url", address(nodes, number, "mayfly"), "-o", "json"))
        assert told["keys"] == KEYS
    one = ["kv", "get", "k0", "--url", nodes.url("mayfly"), "--consistency", "one"]
    until(lambda: braid(*one).stdout == "last\n", "a replica has applied it")
    with kv.connect(nodes.url("mayfly")) as store:
        until(lambda: (told := store.stats()).feed_sequence == told.sequence, "the feed tells of all")
    said = done(
        "kv", "watch", "--from-start", "-n", str(2 * KEYS), "--feed-url", address(nodes, 2, "rustlog"), "-o", "json"
    )
    values = defaultdict(list)
    for line in said.splitlines():
        change = json.loads(line)
        values[change["key"]].append(change["value"])
    assert values == {f"k{at}": ["first", "last"] for at in range(KEYS)}, "each key's changes, in their order"


def test_keys_go_on_when_a_node_is_killed(spark: SparkSession, nodes: ClusterProcess) -> None:
    done("kv", "set", "began", "v", "--url", nodes.url("mayfly"), "--timeout", SECONDS)
    until(lambda: status(nodes)["slots_under_replicated"] == 0, "all replicas are in sync")
    assert status(nodes)["slots"] == SLOTS
    before = snapshot(spark, nodes)
    rows = [(f"s{at}", str(at)) for at in range(200)]

    def kill() -> None:
        with kv.connect(address(nodes, 2, "mayfly"), consistency=Consistency.ONE) as store:
            until(lambda: store.get("s0") is not None, "Spark writes")
        nodes[1].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    frame = spark.createDataFrame(rows, "key string, value string")
    options = {"servers": nodes.url("mayfly"), "window": "4", "retryTimeout": "300s"}
    frame.repartition(2).write.format(FORMAT).options(**options).mode("append").save()
    killer.join()
    done("kv", "set", "after", "the kill", "--url", nodes.url("mayfly"), "--timeout", SECONDS)
    wanted = before | {key.encode(): value.encode() for key, value in rows} | {b"after": b"the kill"}
    assert snapshot(spark, nodes) == wanted
    server = ["--server", nodes.url("kafka")]
    until(lambda: status(nodes)["slots_under_replicated"] == SLOTS, "every slot has a replica on each node")
    assert braid("cluster", "doctor", *server).exit_code == 1
    assert f"{SLOTS} slots of keys: {SLOTS} under-replicated" in done("cluster", "status", *server)
    nodes[1].restart()
    until(lambda: status(nodes)["slots_under_replicated"] == 0, "it has caught up")
    assert snapshot(spark, nodes) == wanted
