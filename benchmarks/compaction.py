"""The p99 of a lone producer while a topic beside it is compacted, and before that, in one run: `make bench-compaction`.

Knows: how a compaction is held off until its data are there, and how it is seen to begin and to end. The topic's keys come back
again and again, so that most of what is read is not written again; it is another topic than the producer's, on the same node.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from benchmarks import doors
from benchmarks.kafka import NOW_MS, QUIET, SECONDS_MAX, produce_request
from benchmarks.load import Frames, Line, percentile
from braidlog.codec.batch.records import encode_batch
from braidlog.testing.server import ServerProcess

SLOWDOWN_MAX: Final = 1.5
GB: Final = 1_000_000_000
SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
KEYS: Final = 100_000
BATCH_RECORDS: Final = 8_000
CALM_SAMPLES: Final = 5_000
AT_ONCE: Final = 100
"""Samples between two looks at whether the compaction goes on."""
MOMENT_SAMPLES: Final = 2_000
"""Between two segments of one compaction nothing is written for a moment: after so many samples without, it has ended."""
WAIT_SECONDS_MAX: Final = 600.0
HELD_OFF: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": str(3_600_000),
}


def batches() -> list[bytes]:
    """About a megabyte each."""
    chance = random.Random(7)  # noqa: S311 - the same for every run
    value = chance.randbytes(100)
    return [
        encode_batch(
            [value] * BATCH_RECORDS,
            keys=[b"key-%06d" % chance.randrange(KEYS) for _ in range(BATCH_RECORDS)],
            base_timestamp=NOW_MS,
        )
        for _ in range(16)
    ]


class Compacting:
    """A node with a topic to be compacted, and a producer of another one."""

    def __init__(self, server: ServerProcess, folder: Path, size_bytes: int) -> None:
        self._server = server
        self._folder = folder
        self._size_bytes = size_bytes
        self._admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}", **QUIET})
        node = doors.Node(server)
        door = self._door = doors.DOORS[0]
        self._line = node.line(door)
        self._request = door.client().request(door.produce(node.topic(self._line, door), [doors.value_of(100)]))
        self._sample(CALM_SAMPLES)

    def measure(self) -> tuple[float, float]:
        """The producer's p99 in seconds while a topic is compacted, and before that."""
        topic = f"compacted-{time.monotonic_ns()}"
        settings = HELD_OFF | {"segment.bytes": str(min(self._size_bytes // 8, SEGMENT_BYTES_MAX))}
        self._admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(SECONDS_MAX)
        self._fill(topic)
        calm = percentile(self._sample(CALM_SAMPLES), 0.99)
        self._release(topic)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not self._is_rewriting:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no compaction began within {WAIT_SECONDS_MAX:g} s")
            self._sample(AT_ONCE)
        taken = self._sample(AT_ONCE)
        latest: list[float] = []
        while len(latest) < MOMENT_SAMPLES and time.monotonic() < deadline:
            latest += self._sample(AT_ONCE)
            if self._is_rewriting:
                taken, latest = taken + latest, []
        self._admin.delete_topics([topic])[topic].result(SECONDS_MAX)
        return percentile(taken, 0.99), calm

    def _fill(self, topic: str) -> None:
        requests = [produce_request(topic, batch) for batch in batches()]
        line = Line(self._server.address("kafka"))
        chosen = [requests[at % len(requests)] for at in range(self._size_bytes // len(requests[0]))]
        line.drive(chosen, 1, Frames(), window=4)
        line.close()

    def _sample(self, count: int) -> list[float]:
        return self._line.latencies(self._request, self._door.counter(), count)

    def _release(self, topic: str) -> None:
        """From now on it may be compacted: the node looks every half a minute."""
        entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)

    @property
    def _is_rewriting(self) -> bool:
        return any(True for _ in self._folder.rglob("*.cleaned"))


@contextmanager
def compacting_node(size_bytes: int) -> Iterator[Callable[[], tuple[float, float]]]:
    """Gives what measures a round."""
    with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
        words = ("--set", "topics.flush=os")
        with ServerProcess(folder, *words) as server:
            yield Compacting(server, Path(folder), size_bytes).measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=5.0, help="how much is compacted in a round")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with compacting_node(int(options.gb * GB)) as measure:
        for number in range(options.rounds):
            beside, calm = measure()
            holds = "holds" if beside <= SLOWDOWN_MAX * calm else "does not hold"
            print(
                f"round {number + 1}: p99 {calm * 1e6:.0f} µs, beside a compaction of {options.gb:g} GB {beside * 1e6:.0f} µs: "
                f"{beside / calm:.2f} times (at most {SLOWDOWN_MAX:g}: {holds})"
            )


if __name__ == "__main__":
    main()
