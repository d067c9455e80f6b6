"""Many partitions on one node: how long they take to be made, how long the node takes to start and to stop, what each costs.

    python -m benchmarks.partitions --count 20000

Nobody uses them: after their creation they are closed (`idle_partition_seconds`), and stay so over a restart. Then some are
written to and the process is killed. The node runs without ports, and in a process of its own for each start. Beside the clock
stands the processor time of the process: on a busy machine the clock says little.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from braidlog.codec.batch.records import encode_batch
from braidlog.model.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.partition.closing import close_idle
from braidlog.server.config import load_config
from braidlog.server.node import Server
from braidlog.server.process.process_memory import resident_bytes
from braidlog.wire.dialect import dialects

SLICE = 500
"""Partitions that are made in one change, so that other changes of topics need not wait long."""
WRITTEN = 200
"""Partitions that are open when the process is killed."""
Found = dict[str, float]


def node(folder: str) -> Server:
    closed = {f"listeners.{name}.enabled": False for name in dialects()}
    return Server(load_config(None, {}, {"data_dir": folder, "admin.enabled": False, **closed}).config)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def measured(found: Found, name: str) -> Iterator[None]:
    began, processor = time.perf_counter(), time.process_time()
    yield
    found[f"{name}, s"] = time.perf_counter() - began
    found[f"{name}, processor s"] = time.process_time() - processor


async def create(server: Server, count: int) -> None:
    """Topics of at most `PARTITIONS_PER_TOPIC_MAX` partitions, which grow by a slice at a time."""
    assert server.services is not None
    for first in range(0, count, PARTITIONS_PER_TOPIC_MAX):
        name, end = f"many-{first}", min(count - first, PARTITIONS_PER_TOPIC_MAX)
        await server.services.topics.create(name, min(SLICE, end))
        for partitions in range(2 * SLICE, end + SLICE, SLICE):
            await server.services.topics.grow(name, min(partitions, end))
            await close_unused(server)
    await close_unused(server)


async def close_unused(server: Server) -> None:
    """What was just made counts as used once."""
    assert server.services is not None
    for _ in range(2):
        await close_idle(server.services.hosting, server.services.runtime)


async def made(folder: str, count: int) -> Found:
    found: Found = {}
    server = node(folder)
    await server.start()
    with measured(found, "create"):
        await create(server, count)
    found["files and sockets open"] = open_files()
    with measured(found, "stop after creation"):
        await server.stop()
    return found


async def started(folder: str, count: int) -> Found:
    return await start(folder, count, "clean")


async def killed(folder: str, count: int) -> Found:
    server = node(folder)
    await server.start()
    assert server.services is not None
    batch = encode_batch([b"x"], base_timestamp=1)
    for number in range(min(WRITTEN, count)):
        await server.services.append.append("many-0", number, batch)
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


async def started_after_kill(folder: str, count: int) -> Found:
    return await start(folder, count, "after a kill")


async def start(folder: str, count: int, how: str) -> Found:
    found: Found = {}
    with tempfile.TemporaryDirectory() as empty:  # what a node takes without partitions is taken before
        server = node(empty + "/data")
        await server.start()
        await server.stop()
    before = resident_bytes()
    server = node(folder)
    with measured(found, f"start, {how}"):
        await server.start()
    assert server.services is not None
    hosted = list(server.services.hosting.opened())
    found["partitions"] = len(hosted)
    found["of them open"] = sum(each.is_open for each in hosted)
    found["bytes of memory for each"] = (resident_bytes() - before) / count
    found["files and sockets open"] = open_files()
    with measured(found, "stop"):
        await server.stop()
    return found


def run(phase: Callable[[str, int], Coroutine[None, None, Found]], folder: str, count: int) -> Found:
    return asyncio.run(phase(folder, count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--folder", help="where the data goes (default: a temporary folder, removed at the end)")
    arguments = parser.parse_args()
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="braid-partitions-"))
    try:
        # Each in a process of its own: what one has freed would hide what the other takes.
        for phase in (made, started, killed, started_after_kill):
            found: Found = {}
            with ProcessPoolExecutor(1, get_context("spawn")) as process, contextlib.suppress(BrokenProcessPool):
                found = process.submit(run, phase, str(folder / "data"), arguments.count).result()
            for name, value in found.items():
                print(f"{name:40} {value:12,.2f}", flush=True)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
