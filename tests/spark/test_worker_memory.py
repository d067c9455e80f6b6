"""A worker of Spark's that has read or written a task keeps what it imported, and the memory that its pieces took."""

import os
import subprocess
import sys
from pathlib import Path

from braidlog import Log

WORKER = """
import gc, resource, sys
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructField, StructType
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Range
from braidlog.spark.source.readers import TopicReader

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [bytearray(8 * 1024 * 1024) for _ in range(5)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

query = Query({"path": sys.argv[1], "subscribe": "t"}, streaming=False)
reader = TopicReader(query, StructType([StructField("offset", LongType())]))
task = InputPartition(Range("t", 0, 0, 1))
assert sum(batch.num_rows for batch in reader.read(task)) == 1
assert gc.get_freeze_count() == 0, "this is no task of Spark's"
pages()
fresh = pages()
TaskContext._getOrCreate()
assert sum(batch.num_rows for batch in reader.read(task)) == 1
kept = gc.get_freeze_count()
later = [[] for _ in range(5000)]
assert sum(batch.num_rows for batch in reader.read(task)) == 1
print(kept > 10_000, gc.get_freeze_count() < kept + 1000)
pages()
print(fresh > 5_000, pages() < 1_000)
"""

PLANNER = """
import gc, sys
from braidlog.spark.topic_source import TopicSource
from pyspark.sql.types import LongType, StructField, StructType

source = TopicSource({"path": sys.argv[1], "subscribe": "t"})
print(gc.get_freeze_count())
schema = source.schema()
print(gc.get_freeze_count())
assert len(source.reader(StructType([StructField("offset", LongType())])).partitions()) == 1
print(gc.get_freeze_count())
later = [[] for _ in range(5000)]
source.schema()
print(gc.get_freeze_count())
"""


def test_a_worker_keeps_imports_and_memory(tmp_path: Path) -> None:
    with Log(str(tmp_path / "d")) as log:
        log.create_topic("t").append(b"v")
    command = [sys.executable, "-c", WORKER, str(tmp_path / "d")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 4), done.stderr


def test_a_process_that_plans_keeps_its_imports_where_spark_uses_it_again(tmp_path: Path) -> None:
    with Log(str(tmp_path / "d")) as log:
        log.create_topic("t").append(b"v")

    def frozen(**variables: str) -> list[int]:
        command = [sys.executable, "-c", PLANNER, str(tmp_path / "d")]
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"} | variables
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return [int(line) for line in done.stdout.split()]

    made, described, planned, again = frozen(SPARK_REUSE_WORKER="1")
    assert 10_000 < made < described <= planned, "what each step imports is frozen at its end"
    assert again < planned + 1000, "nothing was imported since"
    assert frozen() == [0, 0, 0, 0], "a program of the user's"
