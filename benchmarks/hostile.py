"""What a thousand hostile connections cost a good client, in one run: `make bench-hostile`.

Knows: a node, a client that writes a record, durably, and reads it back, and the attackers of the tests in their own process,
which take turns with rest. A ratio is one of neighbours; on a machine that does other things too, single rounds say more
about those, so the median of the rounds is compared.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.adapters.attackers import CONNECTIONS, KEPT, KINDS, Attackers, fill_bulk
from tests.adapters.hostility import settle
from tests.adapters.rustlog.client import Client

from braidlog.testing.server import ServerProcess

SAMPLES = 1000
SLOWDOWN_MAX = 2.0


def p99(server: ServerProcess) -> float:
    """The seconds that all but one of a hundred writes, each read back, stay below."""
    taken = []
    with Client(server) as client:
        for _ in range(SAMPLES):
            began = time.perf_counter()
            offset = client.produce(KEPT, b"x" * 100).base_offset
            (record,) = client.fetch(KEPT, offset).records
            taken.append(time.perf_counter() - began)
            assert record.offset == offset
    return sorted(taken)[int(len(taken) * 0.99)]


@contextmanager
def attacked_node(kind: str = "") -> Iterator[Callable[[], tuple[float, float]]]:
    """Gives what measures a round: the client's p99 under attack, once the opening volley was digested, and without it. A node
    that is attacked with one kind alone has no rest: it is measured at once."""
    with tempfile.TemporaryDirectory() as folder, ServerProcess(folder) as server, Attackers(server) as attackers:
        with Client(server) as client:
            client.create(KEPT)
        fill_bulk(server)
        p99(server)

        def measure() -> tuple[float, float]:
            attackers.order("rest")
            settle(server)
            calm = p99(server)
            attackers.order(f"attack {kind}".strip())
            if not kind:
                settle(server)
            return p99(server), calm

        yield measure
        attackers.order("rest")


def measure_all(rounds: int, kind: str = "") -> list[float]:
    """For each round, how many times slower it was under attack."""
    slower = []
    with attacked_node(kind) as measure:
        for number in range(rounds):
            attacked, calm = measure()
            slower.append(attacked / calm)
            print(f"round {number + 1}: p99 {calm * 1000:.2f} ms, under attack {attacked * 1000:.2f} ms")
    return slower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", choices=sorted(KINDS), default="", help="all connections do this; default: all ways")
    asked = parser.parse_args()
    slower = measure_all(asked.rounds, asked.kind)
    median = statistics.median(slower)
    holds = "holds" if median < SLOWDOWN_MAX else "does not hold"
    print(
        f"{CONNECTIONS} hostile connections: p99 {min(slower):.2f} to {max(slower):.2f} times as long, median {median:.2f}"
    )
    if not asked.kind:
        print(f"less than {SLOWDOWN_MAX:g} times: {holds}")


if __name__ == "__main__":
    main()
