"""Upserts into a topic, keys, a Delta and an Iceberg table, each batch once, whatever is killed and whenever.

The rows are those of a Delta table's commits, read by `braidlog-lake` and looked up in the store. A plain run has one kill,
chosen by a seed that is printed; `make spark-kill` has all: driver, JVM and node after each of the four targets was written, the
executors' Python while tasks write to each of them, the driver when the node has committed and nobody knows.
"""

import json
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from tests.client.drivers.kafka.test_staging import committed
from tests.client.gate import PartitionLocks, Stop
from tests.spark.sink.killing import Driver
from tests.spark.sink.test_kills import ROUNDS, kill_driver, restart
from tests.spark.upsert_driver import KEYS, PARTITIONS, TARGETS, TOPIC, Places, started

from braidlog.client.kv.blocking import connect
from braidlog.spark.lake.tables import open_table
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.apis import Key

ROWS = 60
CITIES = {"A0": "Rome", "A1": "Oslo"}
MODULE = "tests.spark.upsert_driver"
KILLS = [(who, after) for who in ("driver", "java", "node") for after in TARGETS]
KILLS += [("executor", "Produce"), *(("executor", f"in {target}") for target in TARGETS[1:]), ("driver", "commit")]
PASSES = -(-ROUNDS // 20)
"""Each of these kills takes as long as a round of the sink's: once for every twenty of those."""
WAIT_SECONDS_MAX = 900


def append(places: Places, first: int, count: int, n: int) -> list[dict[str, object]]:
    """A commit of the source: keys from `first` on, as a foreign writer makes it. What is to become of its rows."""
    keys = range(first, first + count)
    origins = [f"A{key % 3}" for key in keys]
    write_deltalake(
        places.at("source"), pa.table({"id": list(keys), "origin": origins, "n": [n] * count}), mode="append"
    )
    return [
        {"id": key, "origin": origin, "n": n, "city": CITIES.get(origin)}
        for key, origin in zip(keys, origins, strict=True)
    ]


def kill(who: str, after: str, places: Places, server: ServerProcess, gate: PartitionLocks) -> bool:
    """One driver that is killed, or goes on after the kill; whether its batch came to an end."""
    stop: Stop | None = None
    if after == "Produce":
        stop = gate.stop_at(Key.PRODUCE, 1)
    elif after == "commit":
        stop = gate.stop_at(Key.COMMIT_BATCH, 1, "answer")
    with Driver(MODULE, *places, after if stop is None else "") as driver:
        if stop is None:
            driver.wait_for(Path(places.folder) / "stopped", WAIT_SECONDS_MAX)
        if who == "driver" and stop is None:
            driver.kill()
        elif who == "driver":
            assert stop is not None
            kill_driver(gate, driver, stop)
        elif who == "java":
            driver.kill_java()
        else:
            if stop is not None:
                stop.wait()
                assert driver.kill_workers() > 0
                stop.open()
            else:
                if who == "executor":
                    assert driver.kill_workers() > 0
                else:
                    restart(server, gate)
                (Path(places.folder) / "go").touch()
            driver.finish()
            return True
    gate.cut()
    return False


def check(places: Places, server: ServerProcess, batches: list[list[dict[str, object]]]) -> None:
    """Each target holds what an undisturbed run would have left."""
    last = {row["id"]: row for rows in batches for row in rows}
    values = [line for part in committed(server, TOPIC, PARTITIONS) for line in part]
    expected = [_value(row) for rows in batches for row in rows]
    assert sorted(map(_sorted, values)) == sorted(map(_sorted, expected)), "every row of every batch, once"
    with connect(places.store) as store:
        for key, row in last.items():
            found = store.get(f"{KEYS}{key}".encode())
            assert found is not None
            assert _sorted(found) == _sorted(_value(row))
    for kind in ("delta", "iceberg"):
        state = open_table(kind, places.at(kind)).state(None)
        rows = [row for file in state.files for row in pq.read_table(file.path).to_pylist()]
        assert sorted(rows, key=lambda row: row["id"]) == sorted(last.values(), key=lambda row: str(row["id"]).zfill(9))
    commits = [each["version"] for each in DeltaTable(places.at("delta")).history()]
    assert len(commits) == len(batches) + 1, "one that makes the table, one for each batch, however often it came"


def _value(row: dict[str, object]) -> bytes:
    """As `to_json` writes it: without the key, and without nulls."""
    return json.dumps({name: value for name, value in row.items() if name != "id" and value is not None}).encode()


def _sorted(value: bytes) -> list[tuple[str, object]]:
    return sorted(json.loads(value).items())


def cases() -> list[tuple[str, str]]:
    if ROUNDS:
        return KILLS * PASSES
    seed = int(os.environ.get("KILL_SEED", random.randrange(2**32)))
    print(f"KILL_SEED={seed}")
    return [random.Random(seed).choice(KILLS)]


@pytest.mark.parametrize("number", range(len(KILLS) * PASSES or 1))
def test_every_batch_is_upserted_once_whatever_is_killed(number: int, tmp_path: Path, spark: SparkSession) -> None:
    who, after = cases()[number]
    print(f"kill {who} {after}")
    with PartitionLocks() as gate, ServerProcess(tmp_path / "data", *gate.settings) as server:
        gate.server_port = server.ports["kafka"]
        places = Places(
            f"127.0.0.1:{gate.port}", f"mayfly://127.0.0.1:{server.ports['mayfly']}", str(tmp_path / "work")
        )
        Path(places.folder).mkdir()
        with connect(places.store) as store:
            for origin, city in CITIES.items():
                store.set(f"airport:{origin}".encode(), json.dumps({"city": city}).encode())
        batches = [append(places, 0, ROWS, 1)]
        if not kill(who, after, places, server, gate):
            started(spark, places).awaitTermination()
        check(places, server, batches)
        batches.append(append(places, ROWS // 2, ROWS, 2))
        started(spark, places).awaitTermination()
        check(places, server, batches)
