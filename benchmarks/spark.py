"""Spark over braidlog against Spark over Parquet and Spark's own Kafka connector, in one run: `make bench-spark`.

Knows: what to ask of whom, and the targets. One Spark (`local[2]`) reads and writes the same rows in turn: a ratio is one of
neighbours within a repeat. Rows have a value of 100 random bytes and a key of 8; all seven columns of the connectors are read,
and the Parquet files hold the same seven.

| part | ours | against |
|---|---|---|
| read | topic through the server; `path` of its data folder | Parquet; Spark's Kafka connector through the same port |
| topic | `topic(…)`: `count()`, `where(offset=n)` | Parquet: `count()`, `where` |
| columns | three columns of `topic(…)` | Parquet: `select`; bounds of any Python source (`spark_bounds.py`) |
| table | `topic(…).with_table()`, at most a tenth of it not in the table's files | Parquet |
| fields | three of twenty columns that fields of JSON became in a topic's table | the same rows, written by Spark |
| write | exactly once; at least once | Spark's Parquet writer |
| trigger | a stream of one record each trigger into `noop` | `rate-micro-batch`, one row each, the same checkpoint settings |
| scale | cost per row and memory of the Python workers, from 1 M rows to 50 M | itself |
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

import braidlog
import braidlog.spark
from benchmarks.measure import Spread, interleave, ratios, spread, verdict
from benchmarks.peers import maven
from benchmarks.spark_bounds import CHOSEN, SCHEMA, SOURCES, Fetched, Prebuilt, Whole
from benchmarks.spark_rows import FIELDS, PARTITIONS, VALUE_BYTES, fill, make_topic_of, noise, objects
from braidlog.spark.cold import cold_part
from braidlog.testing.server import ServerProcess

POM = Path(__file__).parent / "peers" / "spark" / "pom.xml"
TRIGGERS = 30
WARM_TRIGGERS = 5
WARM_COLUMNS = 3
"""Rounds until Java has compiled what all of them use."""
STREAM_SECONDS_MAX = 600
TARGETS = {"server": 0.8, "path": 0.9, "connector": 1.0, "write": 0.8, "trigger": 1 / 1.7, "flat": 1 / 1.3}
TARGETS |= {"count": 1.0, "offset": 1.0, "columns": 0.7, "table": 0.9, "fields": 0.9}
TAIL_PART = 10
TURN_SECONDS_MAX = 600
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


class Bench(NamedTuple):
    spark: SparkSession
    node: ServerProcess
    folder: Path
    repeats: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.node.ports['kafka']}"

    def topic(self, name: str, source: str = "braidlog", **options: str) -> DataFrame:
        reader = self.spark.read.format(source).option("kafka.bootstrap.servers", self.address)
        return reader.options(subscribe=name, **options).load().select(*COLUMNS)


# -- what a run costs --------------------------------------------------------------------------------------------


def into_noop(frame: Callable[[], DataFrame], rows: int) -> float:
    """Rows/s of a whole scan; loading is part of it."""
    start = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - start)


class Workers:
    """The largest resident memory any Python worker had while this was open, in bytes."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            for folder in Path("/proc").glob("[0-9]*"):
                self.peak_bytes = max(self.peak_bytes, _worker_bytes(folder))


def _worker_bytes(folder: Path) -> int:
    try:
        if b"pyspark.daemon" not in (folder / "cmdline").read_bytes():
            return 0
        pages = int((folder / "statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0  # it ended meanwhile
    return pages * os.sysconf("SC_PAGE_SIZE")


def processor_ms(node: int) -> dict[str, float]:
    """What Java, its Python workers and the node have used so far."""
    found = {"Java": 0.0, "Python": 0.0, "node": 0.0}
    tick_ms = 1000 / os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        kind = "Java" if b"SparkSubmit" in words else "Python" if b"pyspark.daemon" in words else None
        if int(folder.name) == node:
            kind = "node"
        elif int(fields[3]) != os.getsid(0):
            continue  # somebody else's Spark
        if kind is not None:
            found[kind] += (int(fields[11]) + int(fields[12])) * tick_ms
    return found


# -- parts -------------------------------------------------------------------------------------------------------


def read(bench: Bench, rows: int) -> None:
    topic = "read"
    fill(bench.address, topic, rows)
    parquet = str(bench.folder / "read.parquet")
    bench.topic(topic).write.mode("overwrite").parquet(parquet)
    counted = bench.spark.read.parquet(parquet).count()
    assert counted == rows, f"{counted} of {rows} rows were read"
    direct = {"path": bench.node.data_dir, "subscribe": topic}
    frames: dict[str, Callable[[], DataFrame]] = {
        "Parquet": lambda: bench.spark.read.parquet(parquet),
        "server": lambda: bench.topic(topic),
        "path": lambda: bench.spark.read.format("braidlog").options(**direct).load().select(*COLUMNS),
        "Spark's Kafka connector": lambda: bench.topic(topic, "kafka"),
    }
    runs: dict[str, Callable[[], float]] = {name: partial(into_noop, frame, rows) for name, frame in frames.items()}
    interleave(runs, 1)  # warm
    found = interleave(runs, bench.repeats)
    print(f"\n## read, {rows:,} rows into noop, rows/s\n")
    table(found)
    judge("server : Parquet", ratios(found["server"], found["Parquet"]), "server")
    judge("path : Parquet", ratios(found["path"], found["Parquet"]), "path")
    judge("server : Spark's Kafka connector", ratios(found["server"], found["Spark's Kafka connector"]), "connector")


def topic(bench: Bench, rows: int) -> None:
    """The same question to both: a part of a topic that is chosen before it is read, and Spark's own choice in Parquet."""
    name = "parts"
    fill(bench.address, name, rows)
    parquet = str(bench.folder / "parts.parquet")
    bench.topic(name).write.mode("overwrite").parquet(parquet)
    part = braidlog.spark.topic(bench.spark, name, bench.address)
    middle = rows // PARTITIONS // 2

    def files() -> DataFrame:
        return bench.spark.read.parquet(parquet)

    questions: dict[str, tuple[int, Callable[[], int], Callable[[], int]]] = {
        "count": (rows, part.count, lambda: files().count()),
        "offset": (
            PARTITIONS,
            lambda: part.where(offset=middle).count(),
            lambda: files().where(f"offset = {middle}").count(),
        ),
    }
    for question, (wanted, ours, theirs) in questions.items():
        runs: dict[str, Callable[[], float]] = {
            "Parquet": partial(_per_second, theirs, wanted),
            "topic": partial(_per_second, ours, wanted),
        }
        interleave(runs, 1)  # warm
        found = interleave(runs, bench.repeats)
        print(f"\n## {question} of {rows:,} rows, runs in 1,000 s\n")
        table(found)
        judge(f"topic : Parquet, {question}", ratios(found["topic"], found["Parquet"]), question)


def columns(bench: Bench, rows: int) -> None:
    """Three of seven, and beside it what bounds it: the same reader with values sent, without decoding, without fetching."""
    name = "three"
    fill(bench.address, name, rows)
    parquet = str(bench.folder / "three.parquet")
    bench.topic(name).write.mode("overwrite").parquet(parquet)
    for source in SOURCES:
        bench.spark.dataSource.register(source)

    def bound(source: type[DataSource]) -> DataFrame:
        reader = bench.spark.read.format(source.name()).schema(SCHEMA)
        tasks = str(bench.spark.sparkContext.defaultParallelism)  # as `topic` tells it
        return reader.options(servers=bench.address, subscribe=name, parallelTasks=tasks).load()

    part = braidlog.spark.topic(bench.spark, name, bench.address).columns(*CHOSEN)
    frames: dict[str, Callable[[], DataFrame]] = {
        "Parquet": lambda: bench.spark.read.parquet(parquet).select(*CHOSEN),
        "topic": part.frame,
        "whole batches": partial(bound, Whole),
        "fetched, not decoded": partial(bound, Fetched),
        "prebuilt, nothing read": partial(bound, Prebuilt),
    }
    used: dict[str, list[dict[str, float]]] = {each: [] for each in frames}

    def run(each: str) -> float:
        before = processor_ms(bench.node.pid)
        found = into_noop(frames[each], rows)
        after = processor_ms(bench.node.pid)
        used[each].append({kind: after[kind] - before[kind] for kind in after})
        return found

    runs: dict[str, Callable[[], float]] = {each: partial(run, each) for each in frames}
    interleave(runs, WARM_COLUMNS)
    for measured in used.values():
        measured.clear()
    found = interleave(runs, bench.repeats)
    print(f"\n## columns, three of {rows:,} rows into noop, rows/s; ms on a processor, medians of each process\n")
    print("| | rows/s | Java | Python | node | all |\n|---|---|---|---|---|---|")
    whole = {each: [sum(one.values()) for one in measured] for each, measured in used.items()}
    for each, measured in used.items():
        medians = [statistics.median(one[kind] for one in measured) for kind in measured[0]]
        shown = " | ".join(f"{ms:,.0f}" for ms in [*medians, statistics.median(whole[each])])
        print(f"| {each} | {spread(found[each]):,.0f} | {shown} |")
    print()
    judge("topic : Parquet, columns", ratios(found["topic"], found["Parquet"]), "columns")
    for each in list(frames)[1:]:
        by_processor = ratios(whole["Parquet"], whole[each])
        print(f"{each} : Parquet, {ratios(found[each], found['Parquet']):.2f}; by processor time {by_processor:.2f}")


def with_table(bench: Bench, rows: int) -> None:
    """A topic of which all but its open segments are rows of its table."""
    name = "cold"
    make_cold(bench, name, rows, "raw", noise)
    parquet = str(bench.folder / "cold.parquet")
    bench.topic(name).write.mode("overwrite").parquet(parquet)
    both = braidlog.spark.topic(bench.spark, name, bench.address).with_table()
    assert both.count() == rows
    runs: dict[str, Callable[[], float]] = {
        "Parquet": partial(into_noop, lambda: bench.spark.read.parquet(parquet), rows),
        "with_table": partial(into_noop, both.frame, rows),
    }
    interleave(runs, 1)  # warm
    found = interleave(runs, bench.repeats)
    print(f"\n## table, {rows:,} rows into noop, rows/s\n")
    table(found)
    judge("with_table : Parquet", ratios(found["with_table"], found["Parquet"]), "table")


def make_cold(bench: Bench, topic: str, rows: int, form: str, values: Callable[[int], list[bytes]]) -> list[str]:
    """A topic all but whose open segments, a tenth at most, are rows of its table; the table's files."""
    each = rows // PARTITIONS
    size = max(each // TAIL_PART * VALUE_BYTES, 4096)  # of records that take more: the open one has less than a tenth
    fill(bench.address, topic, rows, {"braidlog.table": form, "segment.bytes": str(size)}, values)
    deadline, pause = time.monotonic() + TURN_SECONDS_MAX, threading.Event()
    while True:
        cold = cold_part(f"kafka://{bench.address}", topic)
        if min(cold.ends.get(number, 0) for number in range(PARTITIONS)) >= each - each // TAIL_PART:
            return cold.files
        assert time.monotonic() < deadline, "segments do not become rows; see `braid table status`"
        pause.wait(0.5)


def fields(bench: Bench, rows: int) -> None:
    """What a query over a few fields reads, where fields are columns."""
    chosen = ("whole3", "number2", "word1")
    files = make_cold(bench, "objects", rows, "json", objects)
    turned = bench.spark.read.parquet(*files)
    names = {
        each for each in turned.columns if each.rstrip("0123456789") in ("whole", "number", "word", "text", "flag")
    }
    assert len(names) == FIELDS, f"{len(names)} of {FIELDS} fields are columns"
    parquet = str(bench.folder / "objects.parquet")
    turned.write.mode("overwrite").parquet(parquet)
    there = turned.count()
    assert (
        bench.spark.read.parquet(parquet).where(" and ".join(f"{each} is not null" for each in chosen)).count() == there
    )
    runs: dict[str, Callable[[], float]] = {
        "Parquet": partial(into_noop, lambda: bench.spark.read.parquet(parquet).select(*chosen), there),
        "table": partial(into_noop, lambda: bench.spark.read.parquet(*files).select(*chosen), there),
    }
    interleave(runs, 1)  # warm
    found = interleave(runs, bench.repeats)
    print(f"\n## fields, three of {FIELDS} columns of {there:,} rows into noop, rows/s\n")
    table(found)
    judge("table : Parquet", ratios(found["table"], found["Parquet"]), "fields")


def _per_second(ask: Callable[[], int], wanted: int) -> float:
    start = time.perf_counter()
    answer = ask()
    assert answer == wanted, f"{answer}, not {wanted}"
    return 1000 / (time.perf_counter() - start)


def write(bench: Bench, rows: int) -> None:
    topic = "written"
    fill(bench.address, topic, rows)
    source = str(bench.folder / "write.parquet")
    bench.topic(topic).select("key", "value").write.mode("overwrite").parquet(source)

    def parquet() -> float:
        start = time.perf_counter()
        frame().write.mode("overwrite").parquet(str(bench.folder / "out.parquet"))
        return rows / (time.perf_counter() - start)

    def ours(delivery: str) -> float:
        name = f"out-{time.monotonic_ns()}"
        make_topic_of(bench.address, name, PARTITIONS)
        start = time.perf_counter()
        writer = frame().write.format("braidlog").mode("append").option("servers", bench.address)
        writer.options(topic=name, delivery=delivery).save()
        return rows / (time.perf_counter() - start)

    def frame() -> DataFrame:
        return bench.spark.read.parquet(source)

    runs: dict[str, Callable[[], float]] = {
        "Parquet": parquet,
        "exactly once": partial(ours, "exactly_once"),
        "at least once": partial(ours, "at_least_once"),
    }
    interleave(runs, 1)  # warm
    found = interleave(runs, bench.repeats)
    print(f"\n## write, {rows:,} rows from Parquet, rows/s\n")
    table(found)
    judge("exactly once : Parquet", ratios(found["exactly once"], found["Parquet"]), "write")
    judge("at least once : Parquet", ratios(found["at least once"], found["Parquet"]), "write")


def trigger(bench: Bench) -> None:
    """Milliseconds of one trigger; theirs : ours, so that more is better."""
    topic = "trigger"
    make_topic_of(bench.address, topic, 1)
    with braidlog.connect(f"kafka://{bench.address}") as client, client.producer() as producer:
        producer.send_many(topic, [b"%d" % at for at in range(100 * TRIGGERS)])
        producer.flush()

    def ours() -> float:
        stream = bench.spark.readStream.format("braidlog").option("servers", bench.address)
        return trigger_ms(bench, stream.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="1"))

    def theirs() -> float:
        return trigger_ms(bench, bench.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1"))

    found = interleave({"rate": theirs, "braidlog": ours}, bench.repeats)
    print(f"\n## trigger of one row, ms (median of {TRIGGERS} each)\n")
    table(found)
    judge("rate : braidlog", ratios(found["rate"], found["braidlog"]), "trigger")


def trigger_ms(bench: Bench, stream: Any) -> float:  # noqa: ANN401 - a DataStreamReader with its options
    checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=bench.folder)
    writer = stream.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    deadline = time.monotonic() + STREAM_SECONDS_MAX
    try:
        while query.lastProgress is None or query.lastProgress.batchId < TRIGGERS + WARM_TRIGGERS:
            if query.exception() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the stream stands still: {query.status} {query.exception()}")
            query.awaitTermination(1)
        taken = {each.batchId: each.durationMs for each in query.recentProgress if each.numInputRows}
    finally:
        query.stop()
    return statistics.median(
        float(durations["triggerExecution"]) for batch, durations in taken.items() if batch >= WARM_TRIGGERS
    )


def scale(bench: Bench, millions: list[int]) -> None:
    """Rows/s of each size beside the smallest; the smallest is read as often as it takes to last as long."""
    peaks: dict[str, int] = {}
    sizes = {f"{size} M": size * 1_000_000 for size in millions}
    for rows in sizes.values():
        fill(bench.address, f"scale-{rows}", rows)
    smallest = min(sizes.values())

    def run(name: str, rows: int) -> float:
        times = max(1, min(5_000_000, max(sizes.values())) // rows)
        with Workers() as workers:
            start = time.perf_counter()
            for _ in range(times):
                into_noop(lambda: bench.topic(f"scale-{rows}"), rows)
            taken = time.perf_counter() - start
        peaks[name] = max(peaks.get(name, 0), workers.peak_bytes)
        return rows * times / taken

    runs: dict[str, Callable[[], float]] = {name: partial(run, name, rows) for name, rows in sizes.items()}
    run(f"{smallest}", smallest)  # warm
    found = interleave(runs, bench.repeats)
    print("\n## scale, rows/s through the server\n")
    table(found)
    first, *others = runs
    for name in others:
        judge(f"{name} : {first}", ratios(found[name], found[first]), "flat")
    shown = ", ".join(f"{name}: {peaks[name] / 2**20:,.0f} MiB" for name in runs)
    print(f"largest resident memory of a Python worker: {shown}")


def table(found: dict[str, list[float]]) -> None:
    print("| | median (lowest..highest) |\n|---|---|")
    for name, values in found.items():
        print(f"| {name} | {spread(values):,.0f} |")
    print()


def judge(what: str, ratio: Spread, target: str) -> None:
    print(f"{what}: {verdict(ratio, TARGETS[target])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts",
        nargs="*",
        default=["read", "topic", "columns", "table", "fields", "write", "trigger", "scale"],
        help="which of them to run",
    )
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--millions", default="1,5,50", help="sizes of the scale part")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", help="where data goes; the system's folder for temporary files otherwise")
    given = parser.parse_args()
    jars = ",".join(str(each) for each in sorted(maven.jars(POM, "spark-kafka").iterdir()))
    settings = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
    }
    words = ("--set", "topics.flush=os", "--set", "topics.retention_ms=-1")
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-", dir=given.dir) as folder,
        ServerProcess(f"{folder}/data", *words) as node,
    ):
        spark = braidlog.spark.session("bench-spark", master="local[2]", **settings)
        spark.sparkContext.setLogLevel("ERROR")
        print(
            f"Spark {spark.version}, its Kafka connector {maven.version(POM, 'spark-kafka')}, {given.repeats} repeats"
        )
        bench = Bench(spark, node, Path(folder), given.repeats)
        parts: dict[str, Callable[[], None]] = {
            "read": partial(read, bench, given.rows),
            "topic": partial(topic, bench, given.rows),
            "columns": partial(columns, bench, given.rows),
            "table": partial(with_table, bench, given.rows),
            "fields": partial(fields, bench, given.rows),
            "write": partial(write, bench, given.rows),
            "trigger": partial(trigger, bench),
            "scale": partial(scale, bench, [int(word) for word in given.millions.split(",")]),
        }
        try:
            for part in given.parts:
                parts[part]()
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
