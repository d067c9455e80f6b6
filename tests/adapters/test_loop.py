"""The largest request of every operation on every port holds up the others no longer than this, and takes no more memory.

Processor time of the longest turn of the loop; the aim is a tenth of it (`make bench-loop`), the rest is for a slow machine.
"""

from collections.abc import Iterator

import pytest
from tests.adapters.largest import largest, operations, prepare
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
    tried, excesses = set(), []
    for each in largest(dialect):
        tried.add(each.operation)
        cost = node.cost_of(dialect, each.frame, answer_bytes_max=each.answer_bytes_max)
        if cost.turn_seconds > TURN_SECONDS_MAX or cost.grown_bytes > GROWN_BYTES_MAX:
            excesses.append(f"{each.operation}, {each.what}: {cost}")
    assert not excesses
    assert tried == operations(dialect), "an operation has no largest request, or one is unknown"


def test_a_long_turn_is_noticed(node: MeasuredNode) -> None:
    """What is measured is the node's own loop: a request of a megabyte costs it more than a ping."""
    cost = {
        each.what: node.cost_of("flux", each.frame) for each in largest("flux") if each.operation in ("PRODUCE", "PING")
    }
    assert cost["Produce 0"].turn_seconds > cost["Ping 0"].turn_seconds > 0
    assert cost["Produce 0"].grown_bytes > 0
