"""kill -9 of a real process on a real disk, under load: what it said was acknowledged is there, and nothing happened twice."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tests.kv.crashing import NODE

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.wal.local_store import LocalStore
from braidlog.model.settings import Flush
from braidlog.storage.files import OsDisk

# Four counters and a list; syncs on another thread, as a server has it, and snapshots every now and then. After each sync the
# process says how far it has got.
WRITER = """
import sys, threading
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.settings import KeyValueSettings
from tests.kv.snapshots import write_snapshot
from braidlog.kv.wal.local_store import LocalStore
from braidlog.storage.files import OsDisk

node, flush = bytes(range(16)), sys.argv[2]
store = LocalStore(OsDisk(), sys.argv[1], node, KeyValueSettings(flush=flush), now_ms=1)
done = int(store.execute(o.Get(b"total"), 1)) if store.execute(o.Exists(b"total"), 1) else 0
more = threading.Event()

def acknowledge():
    while True:
        more.wait()
        more.clear()
        reached = done
        if flush == "ack":
            store.wal.sync()
        print(reached, flush=True)

threading.Thread(target=acknowledge, daemon=True).start()
while True:
    store.execute(o.Increment(b"count%d" % (done % 4)), 1)
    store.execute(o.Push(b"list", o.End.RIGHT, (b"%d" % done,)), 1)
    if done >= 100:
        store.execute(o.Pop(b"list", o.End.LEFT), 1)
    store.execute(o.Increment(b"total"), 1)
    if flush != "ack":
        store.wal.write()
    done += 1
    more.set()
    if done % 3000 == 0:
        write_snapshot(store, 1)
"""


def run_and_kill(folder: Path, flush: str, lines: int) -> int:
    """Wait for so many acknowledgements, kill, and return the last that was made."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), flush], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(lines)]
        writer.kill()
        said += writer.stdout.readlines()
    whole = [int(line) for line in said if line.endswith("\n")]
    assert whole
    return whole[-1]


@pytest.mark.parametrize("flush", ["ack", "os"])
def test_kill(tmp_path: Path, flush: str) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random = Random(seed)
    folder = tmp_path / "kv"
    counts, acked = [0], 0
    for turn in range(5):
        acked = run_and_kill(folder, flush, random.randrange(1, 80))
        store = LocalStore(OsDisk(), str(folder), NODE, KeyValueSettings(flush=Flush(flush)), now_ms=1)
        counts = [
            int(store.execute(o.Get(key), 1)) if store.execute(o.Exists(key), 1) else 0
            for key in (b"total", *(b"count%d" % number for number in range(4)))
        ]
        items = [int(item) for item in store.execute(o.ListRange(b"list", 0, -1), 1)] if counts[1] else []
        store.close()
        where = f"turn {turn}, seed {seed}: {counts}, {acked} acknowledged"
        assert counts[0] >= acked, where
        # The kill may have come between the increments of one round; no round counts twice.
        assert counts[0] <= sum(counts[1:]) <= counts[0] + 1, where
        if items:
            assert items == list(range(items[0], items[-1] + 1)), f"{where}: {items[:5]}…"
            assert counts[0] <= items[-1] + 1 <= counts[0] + 1, where
        settle(folder, flush, counts, items)
    print(f"{counts[0]} rounds, 5 kills, {acked} acknowledged")


def settle(folder: Path, flush: str, counts: list[int], items: list[int]) -> None:
    """Finish the round that the kill has cut short, so that the next process finds whole ones."""
    store = LocalStore(OsDisk(), str(folder), NODE, KeyValueSettings(flush=Flush(flush)), now_ms=1)
    done = counts[0]
    if sum(counts[1:]) > done:
        if not items or items[-1] < done:
            store.execute(o.Push(b"list", o.End.RIGHT, (b"%d" % done,)), 1)
        if done >= 100 and store.execute(o.ListLength(b"list"), 1) > 100:
            store.execute(o.Pop(b"list", o.End.LEFT), 1)
        store.execute(o.Increment(b"total"), 1)
    store.close()
