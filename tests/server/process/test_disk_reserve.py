"""The last of the disk is not for producers."""

import errno
from typing import Any

import pytest
from tests.broker.node import Node

from braidlog.coordinator.offsets import Commit
from braidlog.kv.engine import operations as o
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.server.process.disk_reserve import DiskReserve
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk


class Disk:
    """So much is free."""

    free = 1_000
    fault: OSError | None = None

    def __call__(self) -> int:
        if self.fault is not None:
            raise self.fault
        return self.free


@pytest.fixture
def node() -> Node:
    node = Node()
    node.services.keyvalue.open()
    for _, work in node.services.keyvalue.background():
        node.spawn(work())
    node.create("t")
    node.append("t", b"before")
    return node


def test_producers_are_refused_while_everything_else_goes_on(node: Node) -> None:
    disk, services = Disk(), node.services
    kv = services.keyvalue
    node.run(kv.execute(o.Set(b"k", b"v")))
    reserve = DiskReserve(disk, 500, node.runtime, [services.append, kv])
    node.run(reserve.check())
    node.append("t", b"enough")
    transactions = node.transactions
    txn = node.run(transactions.begin_producer("tx"))
    node.run(transactions.add_partitions("tx", txn.producer_id, txn.epoch, [("t", 0)]))
    disk.free = 499
    node.run(reserve.check())
    for _ in range(2):
        with pytest.raises(StorageFault, match="nearly full") as refused:
            node.append("t", b"too much")
        assert refused.value.is_full, "each door has words for that"
    with pytest.raises(BrokerError, match="delete keys") as full:
        node.run(kv.execute(o.Set(b"k", b"w")))
    assert full.value.reason is Reason.UNAVAILABLE
    assert node.run(kv.execute_columns(o.Columns(False, bytes((o.Kind.GET,)), [b"k"], []))).found == [b"v"]
    changes = o.Columns(True, bytes((o.Kind.INCREMENT, o.Kind.DELETE)), [b"n", b"k"], [b"", b""])
    done = node.run(kv.execute_columns(changes))
    assert isinstance(done.found[0], BrokerError)
    assert (done.found[1], done.refused) == (True, [0])
    node.run(node.offsets.commit("g", [Commit("t", 0, 1)]))
    node.run(transactions.end_transaction("tx", txn.producer_id, txn.epoch, commit=True))
    node.create("another")
    node.run(services.topics.delete("another"))
    assert node.values("t") == [b"before", b"enough"]
    disk.free = 500
    node.run(reserve.check())
    node.append("t", b"again")
    node.run(kv.execute(o.Set(b"k", b"x")))


def test_a_disk_that_does_not_answer_changes_nothing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    reserve = DiskReserve(disk, 500, node.runtime, [node.services.append])
    disk.fault = OSError(5, "Input/output error")
    node.run(reserve.check())
    assert "Input/output error" in caplog.text
    node.append("t", b"as before")


# -- a disk without any room -----------------------------------------------------------------------------------------


class NoRoom(dict[int, int]):
    """Everything that needs room on the disk is refused; a folder that is there is not made again."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def get(self, number: int, default: Any = None) -> Any:
        operation = self._disk.operations[number - 1]
        is_new = operation.kind != "make_folder" or not self._disk.exists(operation.path)
        return errno.ENOSPC if operation.kind in ("append", "write_at", "create", "make_folder") and is_new else default


def stopped(*, clean: bool) -> tuple[SimulatedDisk, ManualClock]:
    node = Node()
    node.create("t")
    node.append("t", b"one", b"two")
    node.run(node.offsets.commit("g", [Commit("t", 0, 1)]))
    if clean:
        node.services.close()
    return node.disk.after_kill(), node.clock


def test_a_node_that_was_stopped_starts_while_every_write_is_refused() -> None:
    disk, clock = stopped(clean=True)
    disk.fail_at = NoRoom(disk)
    node = Node(disk, clock)
    assert node.values("t") == [b"one", b"two"]
    committed = node.offsets.committed("g", "t", 0)
    assert committed is not None
    assert committed.offset == 1
    for _ in range(2):
        with pytest.raises(StorageFault, match="No space") as refused:
            node.append("t", b"too much")
        assert refused.value.is_full
    disk.fail_at = {}
    assert node.append("t", b"room again").base_offset == 2
    assert Node(disk.after_kill(), clock).values("t") == [b"one", b"two", b"room again"]


def test_a_node_that_was_killed_says_that_the_disk_is_full_and_starts_when_there_is_room() -> None:
    """What a kill left has to be made durable before it is served, and to say so takes a few bytes."""
    disk, clock = stopped(clean=False)
    disk.fail_at = NoRoom(disk)
    for _ in range(2):
        with pytest.raises(StorageFault, match="No space") as refused:
            Node(disk, clock)
        assert refused.value.is_full
        disk = disk.after_kill()
        disk.fail_at = NoRoom(disk)
    disk.fail_at = {}
    assert Node(disk, clock).values("t") == [b"one", b"two"]
