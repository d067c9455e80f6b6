"""The last of the disk is not for producers."""

import pytest
from tests.broker.node import Node

from braidlog.coordinator.offsets import Commit
from braidlog.kv import operations as o
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.server.disk_reserve import DiskReserve


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
    reserve = DiskReserve(disk, 500, node.world, [services.append, kv])
    node.run(reserve.look())
    node.append("t", b"enough")
    transactions = services.transactions
    txn = node.run(transactions.begin_producer("tx"))
    node.run(transactions.add_partitions("tx", txn.producer_id, txn.epoch, [("t", 0)]))
    disk.free = 499
    node.run(reserve.look())
    for _ in range(2):
        with pytest.raises(StorageFault, match="nearly full") as refused:
            node.append("t", b"too much")
        assert refused.value.is_full, "each door has words for that"
    with pytest.raises(BrokerError, match="delete keys") as full:
        node.run(kv.execute(o.Set(b"k", b"w")))
    assert full.value.reason is Reason.UNAVAILABLE
    results = node.run(kv.execute_all([o.Get(b"k"), o.Increment(b"n"), o.Delete(b"k")]))
    assert results[0] == b"v"
    assert isinstance(results[1], BrokerError)
    assert results[2] is None
    node.run(services.offsets.commit("g", [Commit("t", 0, 1)]))
    node.run(transactions.end("tx", txn.producer_id, txn.epoch, commit=True))
    node.create("another")
    node.run(services.topics.delete("another"))
    assert node.values("t") == [b"before", b"enough"]
    disk.free = 500
    node.run(reserve.look())
    node.append("t", b"again")
    node.run(kv.execute(o.Set(b"k", b"x")))


def test_a_disk_that_does_not_answer_changes_nothing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    reserve = DiskReserve(disk, 500, node.world, [node.services.append])
    disk.fault = OSError(5, "Input/output error")
    node.run(reserve.look())
    assert "Input/output error" in caplog.text
    node.append("t", b"as before")
