"""A node's limit of idempotent producers: who is known goes on, who is silent is forgotten, one too many is refused."""

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.codec.records import encode_batch
from braidlog.coordinator.holdings import Holdings, StateLimits
from braidlog.model.errors import Reason
from braidlog.partition.producer_limit import COUNT_SECONDS_MIN, SILENT_MS

LIMIT = 4


@pytest.fixture
def node() -> Node:
    node = Node(holdings=Holdings(StateLimits(producers_max=LIMIT)))
    node.create("a", 2)
    return node


def write(node: Node, producer_id: int, sequence: int = 0, *, partition: int = 0, producer_epoch: int = 0) -> int:
    batch = encode_batch(
        [b"x"],
        base_timestamp=node.clock.now_ms(),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )
    return node.run(node.services.append.append("a", partition, batch)).base_offset


def refused(node: Node, producer_id: int, *, partition: int = 0) -> str:
    before = node.services.hosting.partition("a", partition).end_offset
    with refused_with(Reason.QUOTA_EXCEEDED) as error:
        write(node, producer_id, partition=partition)
    assert node.services.hosting.partition("a", partition).end_offset == before
    return str(error.value)


def fill(node: Node) -> None:
    for number in range(LIMIT):
        write(node, number, partition=number % 2)


def test_one_too_many_is_refused_and_who_is_known_goes_on(node: Node) -> None:
    fill(node)
    assert "state.producers_max" in refused(node, 77)
    refused(node, 0, partition=1)  # known, but to the other partition
    assert write(node, 0, 1) == 2
    assert write(node, 0, 1) == 2, "a retry is recognised"
    assert write(node, 0, 0, producer_epoch=1) == 3
    node.append("a", b"from nobody")
    assert node.services.append.producers.count() == LIMIT


def test_what_partitions_know_when_they_are_opened_counts(node: Node) -> None:
    fill(node)
    again = Node(node.disk.after_kill(), node.clock, holdings=Holdings(StateLimits(producers_max=LIMIT)))
    write(again, 0, 1)
    again.services.hosting.partitions("a")
    assert "state.producers_max" in refused(again, 77)


def test_what_has_expired_makes_room(node: Node) -> None:
    fill(node)
    node.run(node.services.topics.alter("a", {"producer_expiry_ms": 1000}))
    node.world.advance(2000)
    for hosted in node.services.hosting.partitions("a"):
        node.services.hosting.keep_up(hosted, node.clock.now_ms())
    write(node, 77)


def test_a_retry_of_old_records_is_recognised_after_upkeep(node: Node) -> None:
    """What a mirror or a backfill writes has its own times: forgotten at the next upkeep, its retry was written twice."""
    batch = encode_batch([b"x"], base_timestamp=1, producer_id=7, producer_epoch=0, base_sequence=0)
    first = node.run(node.services.append.append("a", 0, batch))
    hosted = node.services.hosting.partition("a", 0)
    node.services.hosting.keep_up(hosted, node.clock.now_ms())
    again = node.run(node.services.append.append("a", 0, batch))
    assert (again.base_offset, again.duplicate) == (first.base_offset, True)


def test_at_the_limit_the_silent_are_forgotten_before_their_time(node: Node) -> None:
    fill(node)
    node.world.advance(SILENT_MS - 1000)
    write(node, 0, 1)
    node.run(node.services.append.producers.make_room())
    refused(node, 77)
    node.world.advance(2000)
    node.run(node.services.append.producers.make_room())
    assert node.services.append.producers.count() == 1, "who wrote a moment ago is known"
    assert write(node, 0, 1) == 2
    write(node, 77)


def test_the_silent_stay_where_there_is_room(node: Node) -> None:
    write(node, 1)
    node.world.advance(2 * SILENT_MS)
    node.run(node.services.append.producers.make_room())
    assert node.services.append.producers.count() == 1


def test_a_deleted_topics_producers_make_room(node: Node) -> None:
    fill(node)
    refused(node, 77)
    node.run(node.services.topics.delete("a"))
    node.create("a")
    node.world.advance(int(COUNT_SECONDS_MIN * 1000))
    write(node, 77)
