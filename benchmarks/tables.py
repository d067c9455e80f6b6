"""Segments that become rows of a table: rows a processor second, and a lone producer's p99 meanwhile: `make bench-tables`.

Knows: how a topic's closed segments are turned without a node (`speed`), and how a node is seen to turn them (`beside`). Values
of `raw` are 100 random bytes, which no codec makes smaller; those of `json` have six fields.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import doors
from benchmarks.kafka import NOW_MS, QUIET, SECONDS_MAX, produce_request
from benchmarks.load import Frames, Line, percentile
from braidlog.client.blocking import connect
from braidlog.codec.batch.records import encode_batch
from braidlog.model.settings import TableForm
from braidlog.storage.compaction.compaction_merge import Source
from braidlog.storage.embedded_log import Log, Topic
from braidlog.storage.files import OsDisk
from braidlog.tables.plan import Part, Plan, TablePlace
from braidlog.tables.table_writer import turn
from braidlog.testing.server import ServerProcess

ROWS_TARGET: Final = 1_000_000
SLOWDOWN_MAX: Final = 1.2
BATCH_RECORDS: Final = 1_000
CALM_SAMPLES: Final = 5_000
AT_ONCE: Final = 100
WAIT_SECONDS_MAX: Final = 600.0
FORMS: Final = ("raw", "json")
PRIORITIES: Final = ("low", "idle")


def batch_of(form: str, chance: random.Random, first: int) -> bytes:
    numbers = range(first, first + BATCH_RECORDS)
    if form == "raw":
        values = [chance.randbytes(100) for _ in numbers]
    else:
        cities = ("berlin", "oslo", "turin")
        values = [
            json.dumps(
                {"id": n, "user": f"u{n % 999}", "amount": n / 4, "ok": n % 3 == 0, "city": cities[n % 3], "n": n % 17}
            ).encode()
            for n in numbers
        ]
    return encode_batch(values, base_timestamp=NOW_MS)


def speed(form: str, rows: int) -> float:
    """Rows a processor second, of a process that has turned before."""
    with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
        topic = Log(f"{folder}/data").create_topic("turned")
        chance = random.Random(7)  # noqa: S311 - the same for every run
        for first in range(0, rows, BATCH_RECORDS):
            topic.partition().append(batch_of(form, chance, first), now_ms=NOW_MS)
        turn(_plan(topic, f"{folder}/warm", form), OsDisk())
        plan = _plan(topic, f"{folder}/warehouse", form)
        began = time.process_time()
        done = turn(plan, OsDisk())
        assert done.rows == rows
        return rows / (time.process_time() - began)


def _plan(topic: Topic, warehouse: str, form: str) -> Plan:
    log = topic.partition()
    log.roll(NOW_MS)
    log.sync()
    closed = log.segments[:-1]
    sources = [Source(s.path, s.base_offset, s.next_offset, s.size, s.head.generation, NOW_MS) for s in closed]
    place = TablePlace(warehouse, {}, "topics")
    return Plan(place, topic.name, "0" * 32, TableForm(form), [Part(0, log.start_offset, sources, [])], NOW_MS, -1)


def beside(form: str, rows: int, priority: str) -> tuple[float, float]:
    """The producer's p99 in seconds while another topic becomes a table, and before that."""
    with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
        words = (
            "--set",
            "topics.flush=os",
            "--set",
            "tables.check_seconds=0.1",
            "--set",
            f"tables.priority={priority}",
        )
        with ServerProcess(Path(folder) / "data", *words) as server:
            node, door = doors.Node(server), doors.DOORS[0]
            line = node.line(door)
            request = door.client().request(door.produce(node.topic(line, door), [doors.value_of(100)]))
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}", **QUIET})
            settings = {"segment.bytes": str(16 * 1024 * 1024)}
            admin.create_topics([NewTopic("turned", 1, 1, config=settings)])["turned"].result(SECONDS_MAX)
            _fill(server, form, rows)
            line.latencies(request, door.counter(), CALM_SAMPLES)
            calm = percentile(line.latencies(request, door.counter(), CALM_SAMPLES), 0.99)
            taken: list[float] = []
            with connect(f"kafka://127.0.0.1:{server.ports['kafka']}") as client:
                client.admin.alter_topic("turned", {"braidlog.table": form, "braidlog.table.lag.ms": "1"})
                deadline = time.monotonic() + WAIT_SECONDS_MAX
                turned = 0
                while turned < rows:
                    assert time.monotonic() < deadline, "segments do not become rows; see `braid table status`"
                    taken += line.latencies(request, door.counter(), AT_ONCE)
                    told = {each.name: each.value for each in client.admin.topic_settings("turned")}
                    turned = int(told.get("braidlog.table.rows") or 0)
            return percentile(taken, 0.99), calm


def _fill(server: ServerProcess, form: str, rows: int) -> None:
    chance = random.Random(7)  # noqa: S311 - as above
    batches = [batch_of(form, chance, first * BATCH_RECORDS) for first in range(16)]
    requests = [produce_request("turned", batch) for batch in batches]
    line = Line(server.address("kafka"))
    line.drive([requests[at % len(requests)] for at in range(rows // BATCH_RECORDS)], 1, Frames(), window=4)
    line.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("parts", nargs="*", default=["speed", "beside"])
    options = parser.parse_args()
    for form in FORMS:
        if "speed" in options.parts:
            found = sorted(speed(form, options.rows) for _ in range(options.rounds))
            print(
                f"{form}: {found[len(found) // 2]:,.0f} rows a processor second "
                f"({found[0]:,.0f} to {found[-1]:,.0f}; wanted: {ROWS_TARGET:,})"
            )
        if "beside" in options.parts:
            for _ in range(options.rounds):
                for priority in PRIORITIES:
                    late, calm = beside(form, options.rows, priority)
                    print(
                        f"{form}, tables.priority={priority}: a lone producer's p99 {calm * 1e6:.0f} µs, while "
                        f"{options.rows:,} records become rows {late * 1e6:.0f} µs: {late / calm:.2f} times "
                        f"(at most {SLOWDOWN_MAX:g})"
                    )


if __name__ == "__main__":
    main()
