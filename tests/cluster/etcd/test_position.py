"""How far a node has come, kept in its folder: the old or the new one after any crash, and whose it is."""

import pytest

from braidlog.cluster.etcd.position import Position, PositionFile
from braidlog.model.errors import StorageFault
from braidlog.testing.disk import SimulatedDisk
from braidlog.testing.faults import Crash


def folder() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_folder("/data")
    disk.sync_folder("/")
    return disk


def test_a_folder_that_was_never_part_of_a_cluster() -> None:
    assert PositionFile(folder(), "/data", "0").load() is None


def test_a_crash_leaves_the_old_or_the_new_one() -> None:
    """At every write and sync; once `save` has returned only the new one."""
    states = 0
    for number in range(1, 100):
        disk = folder()
        file = PositionFile(disk, "/data", "0")
        file.load()
        saved = 0
        disk.stop_at = len(disk.operations) + number
        try:
            for seq in range(1, 6):
                file.save(Position("c", seq, str(seq)))
                saved = seq
        except Crash:
            for label, left in disk.crash_states():
                found = PositionFile(left, "/data", "0").load()
                seq = 0 if found is None else found.seq
                assert saved <= seq <= saved + 1, label
                states += 1
        else:
            break
    assert states > 20


def test_another_node_is_refused() -> None:
    disk = folder()
    file = PositionFile(disk, "/data", "0")
    file.load()
    file.save(Position("c", 1, "d"))
    with pytest.raises(
        StorageFault, match=r"this folder belongs to node '0' of cluster 'c', not to '7': set node = '0'"
    ):
        PositionFile(disk, "/data", "7").load()
