"""One job, unchanged, wherever Spark is: in this machine's threads, on a standalone cluster of two workers, behind Spark Connect.

A plain run has the first, `make spark` (SPARK=full) all three.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.debian import have
from tests.spark.pipeline.cluster import Daemon, StandaloneCluster

import braidlog
from braidlog.client.kv.blocking import connect
from braidlog.spark.sessions import settings
from braidlog.testing.server import ServerProcess

SECONDS_MAX = 580
ROWS = 100
CITIES = ("Rome", "Oslo", None)
LOCAL = "local[2]"
PLACES = (LOCAL, "cluster", "connect")
CONNECT = re.compile(r"Spark Connect server started at: \S*:(\d+)")
SMALL = {"spark.driver.memory": "1g", "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}


@contextmanager
def place(where: str, folder: Path) -> Iterator[dict[str, str]]:
    """The environment that says where a job runs: nothing else does."""
    conf = {**settings("local"), **SMALL, "spark.local.dir": str(folder)}
    if where == "cluster":
        with StandaloneCluster(folder, workers=2) as cluster:
            yield _submitted(["--master", cluster.url], conf)
            assert len({path.parent.parent for path in cluster.executors()}) == 2, "both workers had work"
    elif where == "connect":
        conf |= {"spark.connect.grpc.binding.port": "0", "spark.connect.grpc.binding.address": "127.0.0.1"}
        words = ["--master", LOCAL, *_words(conf), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        server = Daemon(folder, "connect", "org.apache.spark.deploy.SparkSubmit", *words, "spark-internal", memory="1g")
        try:
            yield {"SPARK_REMOTE": f"sc://127.0.0.1:{server.said(CONNECT)[1]}"}
        finally:
            server.end()
    else:
        yield _submitted(["--master", LOCAL], conf)


def _submitted(master: list[str], conf: dict[str, str]) -> dict[str, str]:
    return {
        "PYSPARK_SUBMIT_ARGS": " ".join([*master, *_words(conf), "pyspark-shell"]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _words(conf: dict[str, str]) -> list[str]:
    return [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]


def fill(server: ServerProcess) -> list[list[object]]:
    """Flights of two partitions; what is to stand in the table."""
    with braidlog.connect(f"kafka://127.0.0.1:{server.ports['kafka']}") as client:
        client.admin.create_topic("flights", partitions=2)
        producer = client.producer()
        for n in range(ROWS):
            value = json.dumps({"flight": n % 10, "origin": f"A{n % 10 % 3}", "delay": n}).encode()
            producer.send("flights", value, partition=n % 2).result(60)
    with connect(f"mayfly://127.0.0.1:{server.ports['mayfly']}") as store:
        for number, city in enumerate(CITIES):
            if city is not None:
                store.set(b"airport:A%d" % number, json.dumps({"city": city}).encode())
    return [[flight, ROWS - 10 + flight, CITIES[flight % 3]] for flight in range(10)]


@pytest.mark.parametrize("where", PLACES if os.environ.get("SPARK") == "full" else PLACES[:1])
def test_the_same_job_runs_everywhere(where: str, tmp_path: Path) -> None:
    have("java", "openjdk-17-jre-headless")
    with ServerProcess(tmp_path / "data") as server, place(where, tmp_path) as environment:
        table = fill(server)
        servers, store = (f"127.0.0.1:{server.ports['kafka']}", f"mayfly://127.0.0.1:{server.ports['mayfly']}")
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.one_job", servers, store, str(tmp_path / "work")],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
            env={
                **os.environ,
                **environment,
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
        )
        assert done.returncode == 0, done.stderr[-8000:]
        (line,) = (each for each in done.stdout.splitlines() if each.startswith("found "))
    rome = sum(n >= 50 and n % 10 % 3 == 0 for n in range(ROWS))
    assert json.loads(line.removeprefix("found ")) == {"count": ROWS, "part": 10, "late": rome, "table": table}
