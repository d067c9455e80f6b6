"""Epochs of many partitions, begun with one save."""

import pytest
from tests.storage.building import batch

from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.embedded_log import Log
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk
from braidlog.testing.faults import Operation
from braidlog.tools.findings import Severity
from braidlog.tools.verify import verify


def opened(disk: SimulatedDisk, partitions: int = 2) -> tuple[Log, list[PartitionLog]]:
    log = Log("/data", disk=disk, clock=ManualClock())
    topic = log.ensure_topic("t", partitions=partitions)
    return log, [topic.partition(number) for number in range(partitions)]


def begin(log: Log, logs: list[PartitionLog], epoch: int) -> None:
    log.folder.begin_epochs([(each, epoch) for each in logs])


def append(log: PartitionLog, epoch: int) -> None:
    log.append(batch(b"v"), leader_epoch=epoch, now_ms=0)


def test_one_save_serves_all_and_the_first_batch_needs_none() -> None:
    disk = SimulatedDisk()
    log, logs = opened(disk, 50)
    begin(log, logs, 1)
    before = len(disk.operations)
    begin(log, logs, 2)
    assert [each.kind for each in disk.operations[before:]].count("sync") == 2, "both files, once"
    before = len(disk.operations)
    for each in logs:
        append(each, 2)
    assert [each.kind for each in disk.operations[before:]] == ["append"] * 50


def test_what_was_begun_is_there_after_a_crash_before_any_checkpoint() -> None:
    disk = SimulatedDisk()
    log, logs = opened(disk)
    append(logs[0], 1)
    begin(log, logs, 3)
    append(logs[0], 3)
    logs[0].sync()
    _, again = opened(disk.after_kill())
    assert [each.image().epochs for each in again] == [[(1, 0), (3, 1)], [(3, 0)]]
    assert not again[0].damages


def test_an_epoch_that_was_taken_back_stays_so() -> None:
    disk = SimulatedDisk()
    log, logs = opened(disk, 3)
    append(logs[0], 1)
    append(logs[2], 1)
    begin(log, logs, 3)
    logs[0].truncate(1)
    logs[1].restart_at(7, now_ms=0)
    append(logs[2], 3)
    logs[2].truncate(1)
    for each in (logs, opened(disk.after_kill(), 3)[1]):
        assert [log.image().epochs for log in each] == [[(1, 0)], [], [(1, 0)]]


def test_a_save_that_failed_has_begun_nothing() -> None:
    disk = SimulatedDisk()
    log, logs = opened(disk)
    append(logs[0], 1)

    def refuse(operation: Operation) -> None:
        if "epochs" in operation.path and operation.kind == "sync":
            raise StorageFault("refused", operation.path)

    disk.on_operation = refuse
    with pytest.raises(StorageFault):
        begin(log, logs, 3)
    disk.on_operation = None
    assert logs[0].image().epochs == [(1, 0)]
    for epoch, epochs in ((1, [(1, 0)]), (2, [(1, 0), (2, 2)])):
        append(logs[0], epoch)
        again = opened(disk.after_kill())[1][0]
        assert (again.damages, again.image().epochs) == ([], epochs), "its own checkpoint overrules that save"


def test_an_epoch_that_is_over_is_refused() -> None:
    log, logs = opened(SimulatedDisk())
    begin(log, logs, 3)
    with pytest.raises(BrokerError) as caught:
        begin(log, logs, 2)
    assert caught.value.reason is Reason.STALE_LEADER_EPOCH
    begin(log, logs, 3)


def test_of_a_topic_that_is_gone_nothing_is_kept() -> None:
    disk = SimulatedDisk()
    log, logs = opened(disk)
    begin(log, logs, 3)
    log.delete_topic("t")
    log.close()
    log, logs = opened(disk)
    begin(log, logs, 5)
    assert len(log.folder._begun._records) == 2


def test_an_audit_knows_what_was_begun() -> None:
    disk = SimulatedDisk()
    log, logs = opened(disk)
    append(logs[0], 1)
    logs[0].sync()  # with a checkpoint, as the first of a segment
    begin(log, logs, 3)
    append(logs[0], 3)
    logs[0].sync()
    found = verify(disk.after_kill(), "/data")
    assert [str(each) for each in found.all_findings() if each.severity is Severity.DAMAGE] == []
    assert found.partitions[0].end_offset == 2
