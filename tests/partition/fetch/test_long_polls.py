"""Waiting until replicas have what a leader has appended."""

from tests.broker.node import Node

from braidlog.partition.fetch.long_polls import wait_committed

SECONDS = 1.0


def test_waiting_ends_when_all_replicas_have_what_was_appended_before() -> None:
    node = Node()
    node.create("a", 2, followers=["1"])
    partitions = [node.services.hosting.partition("a", number) for number in range(2)]
    for number in range(2):
        node.services.fetch.replica_fetched("a", number, "1", 0)
        node.append("a", b"before", partition=number)
    job = node.spawn(wait_committed(partitions, node.runtime, SECONDS))
    node.append("a", b"after")
    node.services.fetch.replica_fetched("a", 0, "1", 1)
    node.runtime.settle()
    assert not job.is_done
    node.services.fetch.replica_fetched("a", 1, "1", 1)
    node.runtime.settle()
    assert job.is_done


def test_waiting_has_an_end() -> None:
    node = Node()
    node.create("a", 1, followers=["1"])
    node.services.fetch.replica_fetched("a", 0, "1", 0)
    node.append("a", b"x")
    job = node.spawn(wait_committed([node.services.hosting.partition("a", 0)], node.runtime, SECONDS))
    node.runtime.advance(999)
    assert not job.is_done
    node.runtime.advance(1)
    assert job.is_done
