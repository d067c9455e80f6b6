"""What one operation costs the event loop of a lone node and of a cluster of one, in one run: `make bench BENCH=modes`.

Both nodes run side by side, and each round asks one after the other. A figure is processor time of the thread that runs the
event loop, in µs per operation, so that a busy machine changes it little. The cluster of one keeps its metadata in etcd.
"""

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tests.server.etcd.members import members

from benchmarks import doors, kv
from benchmarks.comparison import Asked, Question, Sample
from benchmarks.kafka import NOW_MS, make_topic, produce_request
from benchmarks.load import Frames, Line, Marks
from braidlog.codec.batch.records import encode_batch
from braidlog.model.settings import Flush
from braidlog.testing.server import ServerProcess
from braidlog.wire.rustlog import messages as rustlog
from braidlog.wire.rustlog.connection import ClientConnection as RustlogClient

PRODUCES: Final = 4_000
OPERATIONS: Final = 40_000
PRODUCE_WINDOW: Final = 8
BURST_WINDOW: Final = 4
BURSTS: Final = (250, 64)
PRODUCE_MAX: Final = 1.15
GET_MAX: Final = 1.3
"""How much more a request may cost in a cluster of one than alone."""
SET_US_MAX: Final = {
    (Flush.INTERVAL, 250): 5.0,
    (Flush.ACK, 250): 8.0,
    (Flush.INTERVAL, 64): 15.0,
    (Flush.ACK, 64): 25.0,
}
FEED_MAX: Final = 1.5
"""How much more a SET may cost with the change feed."""

Work = Callable[["Side"], int]
"""Carries out some operations; returns how many."""


class Side(NamedTuple):
    """A node, and the sockets that ask it."""

    node: ServerProcess
    lines: dict[str, Line]

    def line(self, dialect: str) -> Line:
        if dialect not in self.lines:
            self.lines[dialect] = Line(self.node.address(dialect))
        return self.lines[dialect]

    def close(self) -> None:
        for line in self.lines.values():
            line.close()


def loop_seconds(node: ServerProcess) -> float:
    """Processor time of the main thread, which runs the event loop."""
    schedstat = Path(f"/proc/{node.pid}/task/{node.pid}/schedstat").read_text(encoding="ascii")
    return int(schedstat.split()[0]) / 1e9


def cost_us(side: Side, work: Work) -> float:
    before = loop_seconds(side.node)
    count = work(side)
    return (loop_seconds(side.node) - before) / count * 1e6


def produce(side: Side, dialect: str, request: bytes) -> int:
    side.line(dialect).drive([request] * PRODUCES, 1, Frames(), window=PRODUCE_WINDOW)
    return PRODUCES


def ask_keys(side: Side, work: kv.Work, burst: int, mark: bytes) -> int:
    chance = random.Random(7)  # noqa: S311 - both nodes are asked for the same keys
    keys = [[work.prefix + kv.key(chance.randrange(kv.KEYS)) for _ in range(burst)] for _ in range(OPERATIONS // burst)]
    side.line("mayfly").drive([work.ours(each) for each in keys], burst, Marks(mark), window=BURST_WINDOW)
    return len(keys) * burst


@contextlib.contextmanager
def both(flush: Flush, *, feed: bool) -> Iterator[tuple[Side, Side]]:
    """A lone node and a cluster of one."""
    settings = {"topics.flush": flush, "kv.flush": flush, "kv.feed": str(feed).lower()}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        (place / "etcd").mkdir()
        etcd = stack.enter_context(members(place / "etcd", 1))[0].url
        sides = []
        for name, more in (("alone", ()), ("cluster", ("--set", "node=1", "--set", f"cluster.etcd={etcd}"))):
            node = stack.enter_context(ServerProcess(place / name, *words, *more))
            side = Side(node, {})
            stack.callback(side.close)
            kv.fill(node.address("mayfly"), kv.WORKS[0].ours, Marks(OK), kv.KEYS)
            host, port = node.address("kafka")
            make_topic(f"{host}:{port}", TOPIC)
            sides.append(side)
        yield sides[0], sides[1]


OK: Final = b"\xca\xfe\x01\x01"
"""The beginning of an answer of Mayfly that is no refusal."""
TOPIC: Final = "modes"


@contextlib.contextmanager
def modes(flush: Flush, *, feed: bool) -> Iterator[Asked]:
    value = doors.value_of(100)
    requests = {
        "kafka": produce_request(TOPIC, encode_batch([value], base_timestamp=NOW_MS)),
        "rustlog": RustlogClient(rustlog.Form.BINARY).request(
            rustlog.Produce(topic=TOPIC, partition=0, records=[value])
        ),
    }
    what = f"{flush.value}, feed on" if feed else flush.value
    with both(flush, feed=feed) as (alone, clustered):

        def compare(work: Work) -> Sample:
            alone_us, clustered_us = cost_us(alone, work), cost_us(clustered, work)
            return Sample(clustered_us, alone_us, clustered_us)

        def limit(work: Work, us_max: float) -> Sample:
            clustered_us = cost_us(clustered, work)
            return Sample(clustered_us, us_max, clustered_us)

        asked: Asked = []

        def ask(name: str, peer: str, wanted: float, sample: Callable[[], Sample]) -> None:
            asked.append((Question(f"{name}, {what}, cluster of one", peer, wanted, "µs", less_is_better=True), sample))

        if not feed:
            for dialect, request in requests.items():
                work = partial(produce, dialect=dialect, request=request)
                ask(f"{dialect} Produce", "alone", PRODUCE_MAX, partial(compare, work))
        for burst in BURSTS if not feed else BURSTS[:1]:
            us_max = SET_US_MAX[flush, burst] * (FEED_MAX if feed else 1)
            sets, gets = (partial(ask_keys, work=each, burst=burst, mark=OK) for each in kv.WORKS[:2])
            ask(f"SET, bursts of {burst}", f"{us_max:g} µs", 1.0, partial(limit, sets, us_max))
            if not feed:
                ask(f"GET, bursts of {burst}", "alone", GET_MAX, partial(compare, gets))
        yield asked
