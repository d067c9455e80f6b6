"""The segment log against the disk it stands on: `make bench-log`.

Every section prints ratios measured in one run, ours beside the bare system call, interleaved and repeated.
"""

import argparse
import asyncio
import gc
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import uvloop

from benchmarks.measure import interleave, ratios, seconds, spread, verdict
from braidlog import Log, StorageFault
from braidlog.codec.batch.records import encode_batch
from braidlog.storage.embedded_log import Topic

MB = 1_000_000
NOW_MS = 1_700_000_000_000


@contextmanager
def fresh(parent: str) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="bench-log-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.sync()


def batch_of(size: int) -> bytes:
    """One batch of 1 KB records, `size` bytes all told (a little over 1 MiB is avoided: aligned writes are slow here)."""
    return encode_batch([os.urandom(1000)] * (size // 1010), base_timestamp=NOW_MS)


# -- append, flush = os ------------------------------------------------------------------------------------------


def append_ours(parent: str, batch: bytes, total: int, *, window: int = 2**26) -> float:
    """MB/s of `Topic.append_batch` into the page cache, batches checked and patched, synced each time the window fills."""
    with fresh(parent) as folder, Log(f"{folder}/log") as log:
        topic = log.create_topic("t", flush="os", flush_window_bytes=window)
        append = topic.append_batch
        count = total // len(batch)
        append(batch)
        took = seconds(lambda: [append(batch) for _ in range(count)])
        return count * len(batch) / took / MB


def append_bare(parent: str, batch: bytes, total: int, *, window: int | None) -> float:
    """MB/s of writev in a loop: the header and the body as two parts, nothing checked; with or without a syncing thread."""
    with fresh(parent) as folder:
        descriptor = os.open(f"{folder}/bare", os.O_CREAT | os.O_RDWR)
        parts = (memoryview(batch)[:16], memoryview(batch)[16:])
        count = total // len(batch)
        done = threading.Event()
        wake = threading.Semaphore(0)

        def syncing() -> None:
            while wake.acquire() and not done.is_set():
                os.fdatasync(descriptor)

        thread = threading.Thread(target=syncing)
        thread.start()

        def work() -> None:
            since = 0
            for _ in range(count):
                since += os.writev(descriptor, parts)
                if window is not None and since >= window:
                    since = 0
                    wake.release()

        os.writev(descriptor, parts)
        took = seconds(work)
        done.set()
        wake.release()
        thread.join()
        os.close(descriptor)
        return count * len(batch) / took / MB


def bench_append(parent: str, repeats: int, total: int) -> None:
    print(f"\n## Append, flush = os, {total // MB} MB a run, {repeats} runs, MB/s: median (lowest..highest)\n")
    for size in (100_000, 1_000_000):
        batch = batch_of(size)
        results = interleave(
            {
                "ours": partial(append_ours, parent, batch, total),
                "ours, no window": partial(append_ours, parent, batch, total, window=2**40),
                "writev": partial(append_bare, parent, batch, total, window=None),
                "writev + sync every 64 MiB": partial(append_bare, parent, batch, total, window=2**26),
            },
            repeats,
        )
        for name, values in results.items():
            print(f"{size // 1000:5} KB batches  {name:28} {spread(values):,.0f}")
        for ours, name in (("ours", "writev"), ("ours", "writev + sync every 64 MiB"), ("ours, no window", "writev")):
            print(f"{size // 1000:5} KB  {ours} : {name:28} {verdict(ratios(results[ours], results[name]), 0.7)}")


# -- append, flush = ack -----------------------------------------------------------------------------------------


def acks_alone(parent: str, batch: bytes, span: float) -> float:
    """Appends/s of one writer, one fdatasync per append, bare."""
    with fresh(parent) as folder:
        descriptor = os.open(f"{folder}/bare", os.O_CREAT | os.O_RDWR)
        count, end = 0, time.perf_counter() + span
        while time.perf_counter() < end:
            os.write(descriptor, batch)
            os.fdatasync(descriptor)
            count += 1
        os.close(descriptor)
        return count / span


def acks_threads(parent: str, batch: bytes, span: float, appenders: int) -> float:
    """Appends/s of threads that each wait for their own append to be durable."""
    with fresh(parent) as folder, Log(f"{folder}/log") as log:
        topic = log.create_topic("t", flush="ack")
        counts = [0] * appenders
        end = time.perf_counter() + span

        def work(number: int) -> None:
            while time.perf_counter() < end:
                topic.append_batch(batch)
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(n,)) for n in range(appenders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / span


def acks_tasks(parent: str, batch: bytes, span: float, appenders: int) -> float:
    """Appends/s of tasks of one event loop, each waiting for its own append: how a server would do it."""
    with fresh(parent) as folder, Log(f"{folder}/log") as log:
        topic = log.create_topic("t", flush="ack")
        return uvloop.run(_run_tasks(log, topic, batch, span, appenders))


async def _run_tasks(log: Log, topic: Topic, batch: bytes, span: float, appenders: int) -> float:
    loop = asyncio.get_running_loop()
    partition = topic.partition()
    count = 0
    group: asyncio.Future[None] | None = None
    end = time.perf_counter() + span

    def synced(waited: asyncio.Future[None], fault: StorageFault | None) -> None:
        if fault is None:
            waited.set_result(None)
        else:
            waited.set_exception(fault)

    def submit() -> None:
        nonlocal group
        waited, group = group, None
        assert waited is not None

        def done(fault: StorageFault | None) -> None:
            loop.call_soon_threadsafe(synced, waited, fault)

        log.flusher.submit(partition, done)

    async def work() -> None:
        nonlocal count, group
        while time.perf_counter() < end:
            partition.append(batch, now_ms=NOW_MS)
            if group is None:
                group = loop.create_future()
                loop.call_soon(submit)
            await group
            count += 1

    await asyncio.gather(*(work() for _ in range(appenders)))
    return count / span


def bench_ack(parent: str, repeats: int, span: float) -> None:
    batch = encode_batch([b"x" * 100], base_timestamp=NOW_MS)
    appenders = 64
    print(f"\n## Append, flush = ack, one {len(batch)}-byte batch each, {span:g} s a run, {repeats} runs, appends/s\n")
    results = interleave(
        {
            "fdatasync each": lambda: acks_alone(parent, batch, span),
            "ours, 1 thread": lambda: acks_threads(parent, batch, span, 1),
            f"ours, {appenders} threads": lambda: acks_threads(parent, batch, span, appenders),
            f"ours, {appenders} tasks": lambda: acks_tasks(parent, batch, span, appenders),
        },
        repeats,
    )
    for name, values in results.items():
        print(f"{name:20} {spread(values):,.0f}")
    bare = results["fdatasync each"]
    print(f"1 thread : fdatasync each    {ratios(results['ours, 1 thread'], bare):.2f}")
    for kind in ("threads", "tasks"):
        print(f"{appenders} {kind} : fdatasync each  {verdict(ratios(results[f'ours, {appenders} {kind}'], bare), 10)}")


# -- opening -----------------------------------------------------------------------------------------------------

_WRITER = """
import os, sys
from braidlog import Log
from benchmarks.log import batch_of
folder, total, tail, clean = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "clean"
batch = batch_of(100_000)
log = Log(folder)
topic = log.ensure_topic("t", flush="os")
have = topic.partition().size_bytes
for _ in range((total - have) // len(batch)):
    topic.append_batch(batch)
topic.flush()
if not clean:
    log.flusher.stop()  # nobody syncs from here on
    for _ in range(tail // len(batch)):
        topic.partition().append(batch, now_ms=1)
    os._exit(9)
log.close()
"""


def write_log(folder: str, total: int, tail: int, *, clean: bool) -> None:
    command = [sys.executable, "-c", _WRITER, folder, str(total), str(tail), "clean" if clean else "crash"]
    code = subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": "."}).returncode
    assert code == (0 if clean else 9), f"the writer failed with {code}"


def drop_caches() -> bool:
    """Empty the page cache, so that opening pays for its reads; only root may."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1", encoding="ascii")
    except OSError:
        return False
    return True


def open_seconds(folder: str) -> tuple[float, int]:
    start = time.perf_counter()
    log = Log(folder)
    report = log.topic("t").partition().report
    took = time.perf_counter() - start
    log.close()
    return took, report.walked_bytes


def bench_open(parent: str, sizes: list[float]) -> None:
    print("\n## Opening: seconds, and the bytes walked\n")
    cold = drop_caches()
    print("page cache dropped before each opening" if cold else "page cache warm (not root: it cannot be dropped)")
    print(f"{'log':>8} {'stop':>8} {'un-flushed tail':>16} {'seconds':>9} {'walked':>10}")
    with fresh(parent) as folder:
        for size in sizes:
            total = int(size * 1000) * MB
            write_log(f"{folder}/log", total, 0, clean=True)
            drop_caches()
            took, walked = open_seconds(f"{folder}/log")
            print(f"{size:6g}GB {'clean':>8} {'-':>16} {took:9.3f} {walked / MB:8.1f}MB")
            for tail in (0, 16, 64, 256):
                write_log(f"{folder}/log", total, tail * MB, clean=False)
                drop_caches()
                took, walked = open_seconds(f"{folder}/log")
                print(f"{size:6g}GB {'crash':>8} {tail:14}MB {took:9.3f} {walked / MB:8.1f}MB")


# -- reading -----------------------------------------------------------------------------------------------------

_READER = """
import sys, time, resource
from braidlog import Log
from braidlog.storage.embedded_log import READ_BYTES
log = Log(sys.argv[1])
topic = log.topic("t")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start, count, size = time.perf_counter(), 0, 0
if sys.argv[2] == "records":
    for record in topic:
        count += 1
        size += len(record.value)
else:
    part, offset = topic.partition(), 0
    while (found := part.slice_at(offset, READ_BYTES)) is not None:
        size += len(found.read())
        offset = found.next_offset
    count = offset
took = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(f"{sys.argv[2]:8} {size/1e9:6.2f} GB {count:,} records in {took:.1f} s, {size/took/1e6:,.0f} MB/s, "
      f"{count/took/1e6:.2f} M records/s, resident at most {peak/1024:.0f} MB ({before/1024:.0f} MB before)")
log.close()
"""


def bench_read(parent: str, size: float) -> None:
    print(f"\n## Reading {size:g} GB front to back\n")
    with fresh(parent) as folder:
        write_log(f"{folder}/log", int(size * 1000) * MB, 0, clean=True)
        for kind in ("slices", "records"):
            subprocess.run([sys.executable, "-c", _READER, f"{folder}/log", kind], check=True)


def main() -> None:
    sections: dict[str, Callable[[argparse.Namespace], None]] = {
        "append": lambda o: bench_append(o.folder, o.repeats, o.mb * MB),
        "ack": lambda o: bench_ack(o.folder, o.repeats, o.seconds),
        "open": lambda o: bench_open(o.folder, [s for s in (0.1, 1, 10) if s <= o.gb]),
        "read": lambda o: bench_read(o.folder, o.gb),
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"which of {', '.join(sections)} (default: all)")
    parser.add_argument("--folder", default=".", help="a folder on the disk to measure")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--mb",
        type=int,
        default=10_000,
        help="megabytes a run of append writes: less than memory holds measures memory",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds a run of ack takes")
    parser.add_argument("--gb", type=float, default=10, help="the largest log to open and read")
    options = parser.parse_args()
    gc.freeze()
    for name in options.sections or sections:
        sections[name](options)
    print(f"\npeak resident memory of the bench itself {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
