"""A node that leaves waits until the new leaders serve what it led."""

import pytest
from tests.partition.peers import Peers

from braidlog.model.errors import NotLeaderError
from braidlog.partition.leadership_transfer import LeadershipTransfer


def test_a_partition_is_handed_over_when_its_new_leader_has_passed_the_start_of_its_epoch() -> None:
    peers = Peers()
    peers.away = {3}
    job = peers[1].append(b"x")
    peers.carry()
    led = LeadershipTransfer(peer.partition for peer in (peers[1], peers[2]))
    assert led.left() == [peers[1].partition], "the others led nothing"
    peers.elect(2)
    peers.tick()
    assert peers[2].partition.end_offset == 1
    assert led.left() == [peers[1].partition], "it leads, and has not committed what it found: one of the set is away"
    peers.away = set()
    peers.assign()
    peers.tick()
    peers.tick()
    assert led.left() == []
    assert peers[2].partition.is_settled
    assert job.is_done


def test_records_that_come_meanwhile_are_not_waited_for() -> None:
    peers = Peers()
    led = LeadershipTransfer([peers[1].partition])
    peers.away = {3}
    peers.elect(2)
    peers[2].append(b"x")
    peers.carry()
    assert led.left() == [peers[1].partition], "one record is not committed when this is looked at first"
    peers.away = set()
    peers.assign()
    peers.tick()
    peers.tick()
    peers.away = {3}
    peers[2].append(b"y")
    peers.carry()
    assert (peers[1].partition.high_watermark, peers[1].partition.end_offset) == (1, 2)
    assert led.left() == []


def test_a_leader_that_has_not_begun_its_epoch_has_taken_nothing_over() -> None:
    peers = Peers()
    led = LeadershipTransfer([peers[1].partition])
    peers[2].is_slow_to_begin = True
    peers.elect(2)
    assert led.left() == [peers[1].partition]
    peers[2].is_slow_to_begin = False
    peers.carry()
    peers.tick()
    assert led.left() == []


def test_what_nobody_takes_over_is_left() -> None:
    peers = Peers()
    led = LeadershipTransfer([peers[1].partition])
    peers.tick()
    assert led.left() == [peers[1].partition]
    peers[1].partition.retire()
    assert led.left() == []


def test_writes_wait_until_another_leads_and_are_not_in_the_log_here() -> None:
    """Who was told nothing certain would send again, and a record might be there twice."""
    peers = Peers()
    peers.away = {2, 3}
    before = peers[1].append(b"before")
    led = LeadershipTransfer([peers[1].partition])
    led.hold({"a/0"})
    late = peers[1].append(b"late")
    peers.carry()
    assert led.is_awaited
    peers.away = set()
    peers.tick()
    assert before.result().base_offset == 0
    assert not led.is_awaited, "all who were answered by this leader are"
    assert not late.is_done
    peers.elect(2)
    with pytest.raises(NotLeaderError):
        late.result()
    peers.tick()
    assert peers[2].values() == [b"before"]


def test_what_nobody_takes_over_is_written_to_again_in_order() -> None:
    peers = Peers()
    led = LeadershipTransfer([peers[1].partition])
    led.hold({"a/0"})
    jobs = [peers[1].append(b"%d" % number) for number in range(3)]
    peers.carry()
    assert peers[1].partition.end_offset == 0
    led.release()
    peers.carry()
    assert [job.result().base_offset for job in jobs] == [0, 1, 2]
    assert peers[1].values() == [b"0", b"1", b"2"]


def test_writes_to_what_no_other_can_lead_do_not_wait() -> None:
    peers = Peers()
    led = LeadershipTransfer([peers[1].partition])
    led.hold({"b/0"})
    job = peers[1].append(b"x")
    peers.carry()
    assert job.result().base_offset == 0


def test_a_partition_that_goes_meanwhile_lets_go_of_its_writes() -> None:
    peers = Peers()
    LeadershipTransfer([peers[1].partition]).hold({"a/0"})
    job = peers[1].append(b"x")
    peers[1].partition.retire()
    peers.carry()
    assert job.is_done
