"""What the admin port costs: produce throughput of a node without it, and with it under the eyes of people, in one run:
`make bench-console`.

Knows: two nodes on one machine, which take turns. The second has its console, a scrape every second and two tails open on the
topic that is written, all of them read by a process of their own, so that what is compared is what producers get. A ratio is one
of neighbours.
"""

import argparse
import contextlib
import multiprocessing
import multiprocessing.synchronize
import statistics
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.doors import DOORS, WINDOW, Node, ask, value_of
from benchmarks.measure import interleave, ratios, spread, verdict
from braidlog.testing.server import ServerProcess

TARGET = 0.95
TAILS = 2
SCRAPE_SECONDS = 1.0
OPEN_SECONDS_MAX = 60
OFF, OFF_AGAIN, ON = "admin off", "admin off, again", "admin on, looked at"


def look(
    url: str, topic: str, begun: multiprocessing.synchronize.Event, done: multiprocessing.synchronize.Event
) -> None:
    """A process: scrape every second and read the tails until told to stop."""

    def tail() -> None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/api/topics/{topic}/tail") as answer:  # noqa: S310 - ours
            while not done.is_set() and answer.readline():
                pass

    for _ in range(TAILS):
        threading.Thread(target=tail, daemon=True).start()
    while True:
        urllib.request.urlopen(f"{url}/metrics").read()  # noqa: S310 - ours
        begun.set()
        if done.wait(SCRAPE_SECONDS):
            return


@contextlib.contextmanager
def looked_at(url: str | None, topic: str) -> Iterator[None]:
    if url is None:
        yield
        return
    context = multiprocessing.get_context("spawn")
    begun, done = context.Event(), context.Event()
    process = context.Process(target=look, args=(url, topic, begun, done), daemon=True)
    process.start()
    try:
        if not begun.wait(OPEN_SECONDS_MAX):
            raise TimeoutError("the console gave no metrics")
        yield
    finally:
        done.set()
        process.join()


def produce(node: Node, url: str | None, per_batch: int, batches: int, size: int) -> float:
    """Records/s of `batches` requests of `per_batch` records each."""
    door = DOORS[0]
    line = node.line(door)
    topic = node.topic(line, door)
    message = door.produce(topic, [value_of(size)] * per_batch)
    ask(line, door, message)
    with looked_at(url, topic):
        taken = line.drive([door.client().request(message)] * batches, 1, door.counter(), window=WINDOW)
    line.close()
    return per_batch * batches / taken


def report(title: str, contenders: dict[str, Callable[[], float]], repeats: int) -> None:
    print(f"\n## {title}: records/s, median (low..high) of {repeats}")
    results = interleave(contenders, repeats)
    for name, values in results.items():
        print(f"{name:20} {spread(values):12,.0f}")
    print(f"{'noise':20} {ratios(results[OFF_AGAIN], results[OFF]):.3f}  (the same node against itself)")
    best = [statistics.mean(pair) for pair in zip(results[OFF], results[OFF_AGAIN], strict=True)]
    print(f"{'on : off':20} {verdict(ratios(results[ON], best), TARGET)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="of the work in each run")
    options = parser.parse_args()
    flush = ("--set", "topics.flush=os")
    with (
        tempfile.TemporaryDirectory(prefix="braid-bench-") as folder,
        ServerProcess(f"{folder}/off", *flush) as plain,
        ServerProcess(f"{folder}/on", *flush, admin=True) as watched,
    ):
        off, on = Node(plain), Node(watched)
        for per_batch, batches in ((1000, 6000), (1, 40_000)):
            work = {"per_batch": per_batch, "batches": max(int(batches * options.scale), 10), "size": 100}
            contenders: dict[str, Callable[[], float]] = {
                OFF: partial(produce, off, None, **work),
                ON: partial(produce, on, watched.admin_url, **work),
                OFF_AGAIN: partial(produce, off, None, **work),
            }
            report(f"{per_batch} records of 100 B a request", contenders, options.repeats)


if __name__ == "__main__":
    main()
