"""The largest request of every operation on every port holds up the others no longer than this, and takes no more memory.

Processor time of the longest turn of the loop; the aim is a tenth of it (`make bench-loop`), the rest is for a slow machine.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.adapters.crowds import CURSUS_CROWD, FLUX_CROWD, MEMBERS, crowded
from tests.adapters.hostility import WellBehaved, settle
from tests.adapters.kafka.client import Client as KafkaClient
from tests.adapters.kafka.largest import oldest_sampled
from tests.adapters.largest import Large, largest, older, operations, prepare
from tests.adapters.loop_turns import Cost, MeasuredNode

from braidlog.adapters.kafka.records.fetch_requests import WANTED_BYTES
from braidlog.codec.batch.records import encode_batch
from braidlog.server.net.pending_requests import WAITING_BYTES
from braidlog.wire.cursus.connection import ClientConnection as CursusConnection
from braidlog.wire.cursus.requests import GroupStatus
from braidlog.wire.dialect import dialects
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import topics as t

TURN_SECONDS_MAX = 1.0
ALLOCATOR_BYTES = 8 * 1024 * 1024
"""What an allocator keeps beside what is held."""
GROWN_BYTES_MAX = 64 * 1024 * 1024 + ALLOCATOR_BYTES
"""Beside the frame."""
TWICE = {"0xBA7C"}
"""Cursus' batch, whose frame may have 64 MiB: it is there once more while it is put together."""


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
        # A cost is told beyond twice the frame, which is there twice while it is put together.
        grown_bytes = cost.grown_bytes + (0 if each.operation in TWICE else len(each.frame))
        if cost.turn_seconds > TURN_SECONDS_MAX or grown_bytes > GROWN_BYTES_MAX:
            excesses.append(f"{each.operation}, {each.what}: {cost}")
    assert not excesses
    return tried


def test_the_requests_of_groups_of_many_members(node: MeasuredNode) -> None:
    assert len(walk(node, crowded())) == 9
    for group in (CURSUS_CROWD, FLUX_CROWD):
        status = CursusConnection().request(GroupStatus(group))
        assert node.cost_of("cursus", status).answer_bytes > MEMBERS * len("member"), "nobody has joined it"


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


# -- long polls ----------------------------------------------------------------------------------------------------


def poll(node: MeasuredNode, peers: int, polls: int, partitions: int) -> tuple[Cost, Cost]:
    """So many long polls of so many partitions that are empty, on each of the peers: what it costs that they wait, and that
    one record ends them all. Meanwhile a client of another topic goes on."""
    topic = f"polled-by-{peers}"
    asked = [d.FetchRequestPartition(number, -1, 0, partition_max_bytes=1000) for number in range(partitions)]
    request = d.FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=[d.FetchRequestTopic(topic, partitions=asked)])
    with KafkaClient(node) as client, ExitStack() as stack:
        made = client.ask(t.CreateTopicsRequest([t.CreateTopicsRequestTopic(topic, partitions, 1)], 60_000))
        assert not made.topics[0].error_code
        good = WellBehaved(node, f"beside-{topic}")
        waiting = [stack.enter_context(KafkaClient(node)) for _ in range(peers)]
        before = node.begin()
        for each in waiting:
            each.send(*[request] * polls, version=12)
        settle(node)
        waits = node.cost_since(before)
        stack.enter_context(good)
        good.go_on()
        before = node.begin()
        assert not client.produce(topic, encode_batch([b"x"], base_timestamp=0)).error_code
        for each in waiting:
            for _ in range(polls):
                (found,) = each.receive().responses
                assert found.partitions[0].high_watermark == 1
        good.go_on()
        return waits, node.cost_since(before)


def test_long_polls_of_many_connections_hold_up_nobody(node: MeasuredNode) -> None:
    """Two thousand of one partition, which one record ends at once."""
    costs = poll(node, peers=40, polls=50, partitions=1)
    assert all(cost.turn_seconds < 0.1 for cost in costs), costs


def test_long_polls_of_many_partitions_take_what_is_counted(node: MeasuredNode) -> None:
    """109 of 20,000 partitions each took a gigabyte; what they are counted with in the node's budget is what they take."""
    peers, polls, partitions = 5, 20, 200
    waits, ends = poll(node, peers, polls, partitions)
    assert waits.grown_bytes < peers * polls * (partitions * WANTED_BYTES + WAITING_BYTES) + ALLOCATOR_BYTES
    assert max(waits.turn_seconds, ends.turn_seconds) < TURN_SECONDS_MAX, (waits, ends)


def test_long_polls_wait_outside_while_memory_is_short(tmp_path: Path) -> None:
    """Those of few partitions count too: of 4,000, which would take six times what the node may hold, some are begun and the
    others wait in their sockets; nobody is cut off, another client goes on, and in the end all are answered."""
    bytes_max = 4 * 1024 * 1024
    with MeasuredNode(tmp_path / "data", "--set", f"limits.memory_bytes_max={bytes_max}") as node:
        waits, ends = poll(node, peers=20, polls=200, partitions=1)
        assert waits.grown_bytes < bytes_max + ALLOCATOR_BYTES < 4000 * WAITING_BYTES
        assert max(waits.turn_seconds, ends.turn_seconds) < 0.1, (waits, ends)


def test_a_long_turn_is_noticed(node: MeasuredNode) -> None:
    """What is measured is the node's own loop: a request of a megabyte costs it more than a ping."""
    cost = {
        each.what: node.cost_of("flux", each.frame) for each in largest("flux") if each.operation in ("PRODUCE", "PING")
    }
    assert cost["Produce 0"].turn_seconds > cost["Ping 0"].turn_seconds > 0
    assert cost["Produce 0"].grown_bytes > 0
