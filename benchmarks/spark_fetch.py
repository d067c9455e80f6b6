"""What a row of three columns costs the node and a Python worker, without Spark: `python -m benchmarks.spark_fetch`.

Knows: what a worker does with a topic, step by step. Processor time alone, the least of several runs in turn: it can be told on a
busy machine too. Rows are those of `spark.py`: a value of 100 random bytes, a key of 8; key, offset and timestamp are wanted.

| what | the node | the worker |
|---|---|---|
| whole, fetched | sends batches as they are | takes them |
| whole, columns | the same | makes columns of them |
| bare, fetched | makes blocks of columns, without values | takes them |
| bare, columns | the same | puts them together: what `braidlog` does |
"""

import argparse
import tempfile
import time
from pathlib import Path

from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from benchmarks.spark_rows import PARTITIONS, fill
from braidlog.client.drivers.kafka.bulk import Bare
from braidlog.spark.source.chunks import read_chunks
from braidlog.spark.source.columns import record_batches
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Range
from braidlog.testing.server import ServerProcess

TOPIC = "three"
SCHEMA = StructType(
    [StructField("key", BinaryType()), StructField("offset", LongType()), StructField("timestamp", TimestampType())]
)
CASES = {
    "whole, fetched": (Bare.NOTHING, False),
    "whole, columns": (Bare.NOTHING, True),
    "bare, fetched": (Bare.VALUES, False),
    "bare, columns": (Bare.VALUES, True),
}


def processor_ns(pid: int) -> int:
    """Of all threads that a process has now."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text(encoding="ascii").split()[0]) for each in threads)


def read(query: Query, rows: int, bare: Bare, *, columns: bool) -> None:
    for partition in range(PARTITIONS):
        wanted = Range(TOPIC, partition, 0, rows // PARTITIONS)
        chunks = read_chunks(query, wanted, bare)
        if columns:
            assert sum(batch.num_rows for batch in record_batches(query, SCHEMA, wanted, chunks)) == wanted.rows
        else:
            for _ in chunks:
                pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    with (
        tempfile.TemporaryDirectory(prefix="bench-fetch-") as folder,
        ServerProcess(f"{folder}/data", "--set", "topics.flush=os", "--set", "topics.retention_ms=-1") as node,
    ):
        address = f"127.0.0.1:{node.ports['kafka']}"
        fill(address, TOPIC, given.rows)
        query = Query({"servers": address, "subscribe": TOPIC}, streaming=False)
        for _ in range(given.repeats):
            for name, (bare, columns) in CASES.items():
                at_node, here = processor_ns(node.pid), time.process_time_ns()
                read(query, given.rows, bare, columns=columns)
                spent = processor_ns(node.pid) - at_node, time.process_time_ns() - here
                found[name].append((spent[0] / given.rows, spent[1] / given.rows))
    print(f"ns on a processor for a row, the least of {given.repeats} runs of {given.rows:,} rows\n")
    print("| | node | worker | both |\n|---|---|---|---|")
    for name, runs in found.items():
        node_ns, worker_ns, both = (min(each) for each in (*zip(*runs, strict=True), [sum(run) for run in runs]))
        print(f"| {name} | {node_ns:.0f} | {worker_ns:.0f} | {both:.0f} |")


if __name__ == "__main__":
    main()
