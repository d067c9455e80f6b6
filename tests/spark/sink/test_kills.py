"""Exactly once, whatever is killed: a driver, its workers, the node, at every stage of a micro-batch.

One query, one checkpoint, one topic. A gate before the node stops at the message that was chosen, so that each kill falls where
it is meant to. In the end a foreign reader of committed records must find every line once. A plain run kills the driver at one of
its three moments, chosen by a seed that is printed; `make spark-kill SPARK_KILL_ROUNDS=20` kills it at all three in every round.
"""

import os
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.client.drivers.kafka.test_staging import committed
from tests.client.gate import PartitionLocks, Stop
from tests.spark.sink.driver import PARTITIONS, TOPIC, started
from tests.spark.sink.killing import Driver

from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.apis import Key

FILES, LINES = 5, 120
STAMP = 1_700_000_000
ROUNDS = int(os.environ.get("SPARK_KILL_ROUNDS", "0"))
"""0: one round, with one of the moments at which a driver is killed."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Micro-batches to come: a file each, of lines that say where they are from."""
    made = tmp_path / "in"
    made.mkdir()
    for file in range(FILES):
        text = "".join(f"{file}/{line} {'x' * 60}\n" for line in range(LINES))
        (made / f"{file}.txt").write_text(text)
        os.utime(made / f"{file}.txt", (STAMP + file, STAMP + file))  # Spark takes the oldest first
    return made


def restart(server: ServerProcess, gate: PartitionLocks) -> None:
    server.kill()
    server.restart()
    gate.server_port = server.ports["kafka"]
    gate.cut()


def kill_driver(gate: PartitionLocks, driver: Driver, stop: Stop) -> None:
    stop.wait()
    driver.kill()
    gate.cut()
    stop.open()


@pytest.mark.parametrize("round_number", range(max(ROUNDS, 1)))
def test_every_line_counts_once_whatever_is_killed(
    round_number: int, folder: Path, tmp_path: Path, spark: SparkSession
) -> None:
    seed = round_number if ROUNDS else int(os.environ.get("KILL_SEED", random.randrange(2**32)))
    print(f"KILL_SEED={seed}")
    rng = random.Random(seed)
    checkpoint, scratch = tmp_path / "checkpoint", tmp_path / "scratch"
    scratch.mkdir()
    with PartitionLocks() as gate, ServerProcess(tmp_path / "data", *gate.settings) as server:
        gate.server_port = server.ports["kafka"]
        servers = f"127.0.0.1:{gate.port}"

        def driver() -> Driver:
            return Driver("tests.spark.sink.driver", servers, folder, checkpoint, scratch)

        # 1. The driver, while its tasks stage. 2. When all is staged. 3. When it counts, and Spark has not heard of it.
        moments = [
            (Key.PRODUCE, rng.randrange(1, 5), "request"),
            (Key.COMMIT_BATCH, 1, "request"),
            (Key.COMMIT_BATCH, 1, "answer"),
        ]
        if not ROUNDS:
            moments = [rng.choice(moments)]
        for key, nth, side in moments:
            stop = gate.stop_at(key, nth, side)  # type: ignore[arg-type]
            with driver() as dying:
                kill_driver(gate, dying, stop)
            assert not (checkpoint / "commits" / "0").exists(), "Spark holds batch 0 for unfinished"
        restart(server, gate)  # the node too, before the batch comes again
        counts = range(1 if moments[-1][2] == "answer" else 0)
        assert committed_lines(server) == sorted(lines_of(folder, counts)), "batch 0 counts, without Spark's knowing"

        with driver() as living:
            # 4. The node, while a task writes: the same records again, under the same numbers.
            stop = gate.stop_at(Key.PRODUCE, rng.randrange(1, 5))
            stop.wait()
            restart(server, gate)
            stop.open()
            # 5. Workers in the middle of a task: Spark tries again, and what they left does not count.
            stop = gate.stop_at(Key.PRODUCE, rng.randrange(1, 5), rng.choice(["request", "answer"]))
            stop.wait()
            assert living.kill_workers() > 0
            stop.open()
            # 6. The node, when it has committed and nobody knows.
            stop = gate.stop_at(Key.COMMIT_BATCH, 1, "answer")
            stop.wait()
            restart(server, gate)
            stop.open()
            living.finish()
        everything = sorted(lines_of(folder, range(FILES)))
        assert committed_lines(server) == everything

        # 7. Spark forgets that the last batch was written: it comes again, and changes nothing.
        last = checkpoint / "commits" / str(FILES - 1)
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        commits, produced = gate.seen[Key.COMMIT_BATCH], gate.seen[Key.PRODUCE]
        started(spark, servers, str(folder), str(checkpoint)).awaitTermination()
        assert last.exists()
        assert gate.seen[Key.COMMIT_BATCH] == commits + 1, "the batch was committed again"
        assert gate.seen[Key.PRODUCE] == produced, "and nothing was written for it"
        assert committed_lines(server) == everything


def lines_of(folder: Path, files: range) -> list[bytes]:
    return [line.encode() for file in files for line in (folder / f"{file}.txt").read_text().splitlines()]


def committed_lines(server: ServerProcess) -> list[bytes]:
    return sorted(line for partition in committed(server, TOPIC, PARTITIONS) for line in partition)
