"""A batch over several partitions: written to each, then waited for together."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.adapters.contract import answer_of
from braidlog.adapters.cursus.handlers import CursusAdapter
from braidlog.adapters.cursus.producing import KEY_BYTES_SLICE, PARTITIONS_SLICE
from braidlog.model.errors import Reason
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.wire.cursus.batch import Batch, BatchRecord, Spelling
from braidlog.wire.cursus.messages import OPERATIONS, Request

PARTITIONS = 4
KEYED = [BatchRecord(b"v", b"key-%d" % number) for number in range(40)]


@pytest.fixture
def node() -> Node:
    made = Node()
    made.create("t", PARTITIONS)
    return made


def produce(
    node: Node, records: list[BatchRecord], acks: str = "-1", *, conversation: Any = None, topic: str = "t"
) -> Any:
    adapter = CursusAdapter(node.services.only(CursusAdapter.uses))
    operation = next(row for row in OPERATIONS if row.request is Batch)
    request = Request(operation, Batch(topic, -1, records, acks), next(iter(Spelling)))
    return answer_of(
        adapter.handle,
        conversation or SimpleNamespace(principal="anonymous", peer="there:1", address=("here", 1)),
        request,
    )


def hosted(node: Node) -> list[Partition]:
    return [node.services.hosting.partition("t", number) for number in range(PARTITIONS)]


@pytest.mark.parametrize("acks", ["1", "-1"])
def test_all_partitions_are_waited_for_together(node: Node, acks: str) -> None:
    with node.runtime.holding_syncs():
        job = node.runtime.spawn(produce(node, KEYED, acks))
        node.runtime.settle()
        waiting = {log for log, _ in node.runtime._held if isinstance(log, PartitionLog)}
        assert waiting == {each.log for each in hosted(node)}, "each is being synced before any is done"
        assert not job.is_done
        before = node.runtime.syncs
        node.runtime.sync()
        assert job.is_done, "one wait was enough"
        assert node.runtime.syncs - before == PARTITIONS
    ack = job.result()
    assert (ack.status, ack.last_offset) == ("OK", max(each.high_watermark for each in hosted(node)) - 1)
    assert sum(each.high_watermark for each in hosted(node)) == len(KEYED)


def test_what_one_partition_refuses_does_not_undo_the_others(node: Node) -> None:
    node.run(node.services.placement.set_role("t", PARTITIONS - 1, Role.FOLLOWER))
    ack = node.run(produce(node, KEYED))
    assert ack.status == "PARTIAL"
    assert "NOT_LEADER" in ack.error
    assert [each.high_watermark > 0 for each in hosted(node)] == [True, True, True, False]


def test_nothing_stored_is_an_error(node: Node) -> None:
    for number in range(PARTITIONS):
        node.run(node.services.placement.set_role("t", number, Role.FOLLOWER))
    with refused_with(Reason.NOT_LEADER):
        node.run(produce(node, KEYED))


def test_many_partitions_are_written_to_in_slices(node: Node) -> None:
    node.create("wide", 3 * PARTITIONS_SLICE)
    records = [BatchRecord(b"v", b"%d" % number) for number in range(40 * PARTITIONS_SLICE)]
    conversation: Any = SimpleNamespace(principal="anonymous", peer="there:1", address=("here", 1), alone=MagicMock())
    job = produce(node, records, conversation=conversation, topic="wide")

    def written() -> int:
        return sum(1 for each in node.services.hosting.partitions("wide") if each.end_offset)

    for slices in (1, 2):
        job.send(None)
        assert written() == slices * PARTITIONS_SLICE
        assert conversation.alone.return_value.__exit__.call_count == 0
    assert node.run(job).status == "OK"
    assert written() == 3 * PARTITIONS_SLICE
    assert conversation.alone.return_value.__exit__.call_count == 1


def test_many_keys_are_hashed_in_slices_and_nothing_is_written_meanwhile(node: Node) -> None:
    records = [BatchRecord(b"%d" % number, b"%032d" % number) for number in range(3 * KEY_BYTES_SLICE // 32)]
    conversation: Any = SimpleNamespace(principal="anonymous", peer="there:1", address=("here", 1), alone=MagicMock())
    job = produce(node, records, conversation=conversation)
    for _ in range(3):
        job.send(None)  # others have a turn, and nothing of this client's is begun in it
        assert conversation.alone.return_value.__exit__.call_count == 0
        assert sum(each.end_offset for each in hosted(node)) == 0
    assert node.run(job).status == "OK"
    assert conversation.alone.return_value.__exit__.call_count == 1
    for partition in range(PARTITIONS):
        values = [int(value or b"") for value in node.values("t", partition)]
        assert values == sorted(values)
    assert sum(each.end_offset for each in hosted(node)) == len(records)
