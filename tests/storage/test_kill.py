"""kill -9 of a real process on a real disk: what it said was acknowledged is there, and nothing else was invented."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from braidlog.storage.embedded_log import Log

WRITER = """
import sys, threading
from braidlog.storage.embedded_log import Log

log = Log(sys.argv[1])
topic = log.ensure_topic("t", partitions=2, segment_bytes=16384, index_interval_bytes=512, flush=sys.argv[3])
say = threading.Lock()

def write(thread):
    number = 0
    while True:
        value = b"%s-%d-%d" % (sys.argv[2].encode(), thread, number) + b"." * (number % 300)
        offset = topic.append(value, partition=thread % 2)
        with say:
            print(thread % 2, offset, value.decode(), flush=True)
        number += 1

for thread in range(6):
    threading.Thread(target=write, args=(thread,), daemon=True).start()
threading.Event().wait()
"""


def run_and_kill(folder: Path, name: str, flush: str, acknowledgements: int) -> dict[tuple[int, int], bytes]:
    """Wait for so many acknowledgements, kill, and return all that were made."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name, flush], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(acknowledgements)]
        writer.kill()
        lines += writer.stdout.readlines()
    acked = {}
    for line in lines:
        parts = line.split()
        if len(parts) == 3 and line.endswith("\n"):  # the last line may be half a line
            acked[int(parts[0]), int(parts[1])] = parts[2].encode()
    return acked


@pytest.mark.parametrize("flush", ["ack", "os", "interval"])
def test_kill(tmp_path: Path, flush: str) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random = Random(seed)
    acked: dict[tuple[int, int], bytes] = {}
    for turn in range(4):
        acked |= run_and_kill(tmp_path, f"turn{turn}", flush, random.randrange(1, 600))
        with Log(str(tmp_path)) as log:
            topic = log.topic("t")
            for partition in range(2):
                assert not topic.partition(partition).damages
                found = {record.offset: record.value for record in topic.iterate(partition=partition)}
                assert sorted(found) == list(range(len(found))), "offsets are not dense"
                assert all(value is not None and value.startswith(b"turn") for value in found.values())
                wanted = {offset: value for (number, offset), value in acked.items() if number == partition}
                lost = {offset for offset, value in wanted.items() if found.get(offset) != value}
                assert not lost, f"acknowledged and gone: {sorted(lost)[:5]}, seed {seed}"
    print(f"{len(acked)} acknowledged records survived 4 kills")
    assert len(acked) >= 4
