"""The largest request of every operation on every port holds up the others no longer than this, and takes no more memory.

Processor time of the longest turn of the loop; the aim is a tenth of it (`make bench-loop`), the rest is for a slow machine.
"""

import random
from collections.abc import Iterable, Iterator

import pytest
from tests.adapters.kafka.largest import oldest_sampled
from tests.adapters.largest import Large, largest, older, operations, prepare
from tests.adapters.loop_turns import MeasuredNode

from braidlog.wire.dialect import dialects

TURN_SECONDS_MAX = 1.0
GROWN_BYTES_MAX = (64 + 8) * 1024 * 1024
"""64 MiB, and what an allocator keeps beside them."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredNode]:
    with MeasuredNode(tmp_path_factory.mktemp("loop") / "data", "--set", "listeners.kafka.auto_create=false") as node:
        prepare(node)
        yield node


@pytest.mark.parametrize("dialect", dialects())
def test_the_largest_requests(node: MeasuredNode, dialect: str) -> None:
    assert walk(node, largest(dialect)) == operations(dialect), "an operation has no largest request, or one is unknown"


def walk(node: MeasuredNode, requests: Iterable[Large]) -> set[str]:
    """Send all of them; which operations they were of."""
    tried, excesses = set(), []
    for each in requests:
        tried.add(each.operation)
        cost = node.cost_of(each.dialect, each.frame, answer_bytes_max=each.answer_bytes_max)
        if cost.turn_seconds > TURN_SECONDS_MAX or cost.grown_bytes > GROWN_BYTES_MAX:
            excesses.append(f"{each.operation}, {each.what}: {cost}")
    assert not excesses
    return tried


def test_the_oldest_versions_of_kafkas(node: MeasuredNode) -> None:
    """One array of each; `make bench-loop` has all arrays of all versions."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    assert len(walk(node, older(oldest_sampled(random.Random(seed))))) > 20


def test_a_pipeline_of_small_requests_is_served_in_short_turns(node: MeasuredNode) -> None:
    """Others are served in between: by time, whatever fits one read of the socket. `bench-loop --pings`: a million."""
    (ping,) = [each.frame for each in largest("flux") if each.operation == "PING"]
    cost = node.cost_of("flux", ping * 50_000)
    assert cost.answer_bytes >= 50_000 * len(b"OK\n")
    assert cost.turn_seconds < 0.1
    assert cost.grown_bytes < GROWN_BYTES_MAX


def test_a_long_turn_is_noticed(node: MeasuredNode) -> None:
    """What is measured is the node's own loop: a request of a megabyte costs it more than a ping."""
    cost = {
        each.what: node.cost_of("flux", each.frame) for each in largest("flux") if each.operation in ("PRODUCE", "PING")
    }
    assert cost["Produce 0"].turn_seconds > cost["Ping 0"].turn_seconds > 0
    assert cost["Produce 0"].grown_bytes > 0
