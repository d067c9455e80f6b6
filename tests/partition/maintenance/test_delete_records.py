"""Records below an offset are deleted: durably, never what is not committed, and offsets go on."""

import pytest
from tests.broker.node import Node, batch_of
from tests.refusals import refused_with

from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.maintenance.delete_records import TO_THE_END


@pytest.fixture
def node() -> Node:
    made = Node()
    made.create("a", 1)
    made.append("a", b"0", b"1", b"2")
    made.append("a", b"3")
    return made


def test_what_is_below_is_gone_for_good(node: Node) -> None:
    trim = node.services.trim
    assert node.run(trim.delete_before("a", 0, 2)) == 2
    for each in (node, node.restarted()):
        assert each.values("a") == [b"2", b"3"]
    assert node.run(trim.delete_before("a", 0, 1)) == 2, "it does not go back"
    assert node.run(trim.delete_before("a", 0, TO_THE_END)) == 4
    assert node.append("a", b"4").base_offset == 4
    assert node.restarted().values("a") == [b"4"]


@pytest.mark.parametrize("offset", [5, -2, 2**62])
def test_out_of_range(node: Node, offset: int) -> None:
    with refused_with(Reason.OFFSET_OUT_OF_RANGE):
        node.run(node.services.trim.delete_before("a", 0, offset))
    assert node.values("a") == [b"0", b"1", b"2", b"3"]


def test_what_is_not_committed_stays(node: Node) -> None:
    with node.runtime.holding_syncs():
        appending = node.spawn(node.services.append.append("a", 0, batch_of(b"late")))
        with pytest.raises(BrokerError):
            node.run(node.services.trim.delete_before("a", 0, 5))
    appending.result()
    assert node.run(node.services.trim.delete_before("a", 0, 5)) == 5


def test_several_at_once(node: Node) -> None:
    jobs = [node.spawn(node.services.trim.delete_before("a", 0, offset)) for offset in (3, 1, 2)]
    node.runtime.settle()
    assert [job.result() for job in jobs] == [3, 3, 3]
