"""Group commit: few syncs for many, and a failure reaches everyone."""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.storage.building import IDENTITY, NOW, batch, make_partition, small

from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.files import OsDisk
from braidlog.storage.group_commit import SHARED_FROM, Flusher, GroupCommit
from braidlog.storage.log.partition_log import PartitionLog, create_partition
from braidlog.storage.open_files import FilePool
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk

DEADLINE = 20.0


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait on a condition that another thread makes true, with a deadline."""
    tick = threading.Event()
    for _ in range(int(DEADLINE / 0.005)):
        if condition():
            return
        tick.wait(0.005)
    raise AssertionError("it did not happen before the deadline")


class PartitionLocks:
    """A partition whose first sync waits until the test lets it go; counts the syncs of its files."""

    def __init__(self, partition: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.entered = threading.Event()
        self.open = threading.Event()
        real = partition._chain.sync_names

        def gated() -> None:
            self.syncs += 1
            self.entered.set()
            assert self.open.wait(DEADLINE)
            real()

        monkeypatch.setattr(partition._chain, "sync_names", gated)


def test_many_waiters_share_few_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = make_partition(SimulatedDisk(), small(segment_bytes=2**20))
    gate = PartitionLocks(partition, monkeypatch)
    commit = GroupCommit(partition)
    appended = threading.Semaphore(0)

    def write(_: int) -> int:
        found = partition.append(batch(b"v"), now_ms=NOW)
        appended.release()
        commit.wait(found.next_offset)
        assert partition.durable_offset >= found.next_offset
        return found.base_offset

    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(write, 0)
        assert gate.entered.wait(DEADLINE)
        rest = [threads.submit(write, n) for n in range(7)]
        for _ in range(8):
            assert appended.acquire(timeout=DEADLINE)
        gate.open.set()
        offsets = [first.result(DEADLINE), *(one.result(DEADLINE) for one in rest)]
    assert sorted(offsets) == list(range(8))
    assert gate.syncs == 2  # one for the first, one for the seven that came meanwhile


def test_a_failure_reaches_every_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    partition = make_partition(disk)
    gate = PartitionLocks(partition, monkeypatch)
    commit = GroupCommit(partition)
    appended = threading.Semaphore(0)

    def write(_: int) -> str:
        found = partition.append(batch(b"v"), now_ms=NOW)
        appended.release()
        try:
            commit.wait(found.next_offset)
        except StorageFault as fault:
            return str(fault)
        return "acknowledged"

    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(write, n) for n in range(4)]
        for _ in range(4):
            assert appended.acquire(timeout=DEADLINE)
        assert gate.entered.wait(DEADLINE)
        disk.fail_at = {len(disk.operations) + 1: errno.EIO}
        gate.open.set()
        assert all("Input/output error" in one.result(DEADLINE) for one in answers)
    assert partition.durable_offset == 0


def test_on_a_real_disk_threads_sync_less_often_than_they_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk()
    folder = str(tmp_path / "p")
    settings = small(segment_bytes=2**20)
    create_partition(disk, folder, IDENTITY, settings, FilePool(disk), now_ms=NOW)
    partition = PartitionLog(disk, folder, IDENTITY, settings, FilePool(disk))
    gate = PartitionLocks(partition, monkeypatch)
    commit = GroupCommit(partition)
    gate.open.set()
    together = threading.Barrier(8)

    def write(_: int) -> None:
        for _ in range(25):
            together.wait(DEADLINE)
            commit.wait(partition.append(batch(b"v" * 100), now_ms=NOW).next_offset)

    with ThreadPoolExecutor(8) as threads:
        for one in [threads.submit(write, n) for n in range(8)]:
            one.result(DEADLINE)
    assert partition.durable_offset == 200
    assert gate.syncs < 200


def test_submitted_partitions_are_synced_and_told() -> None:
    partition = make_partition(SimulatedDisk())
    flusher = Flusher(ManualClock())
    partition.append(batch(b"v"), now_ms=NOW)
    told: list[StorageFault | None] = []
    done = threading.Event()

    def tell(fault: StorageFault | None) -> None:
        told.append(fault)
        done.set()

    flusher.submit(partition, tell)
    assert done.wait(DEADLINE)
    assert told == [None]
    assert partition.durable_offset == 1
    flusher.stop()
    with pytest.raises(BrokerError) as caught:
        flusher.submit(partition)
    assert caught.value.reason is Reason.LOG_CLOSED


class MetWhileSyncing:
    """A `Syncable` whose sync ends when another one's has begun."""

    settings = small()
    durable_offset = unsynced_bytes = 0

    def __init__(self, together: threading.Barrier) -> None:
        self._together = together

    def sync(self, upto: int | None = None) -> int:
        self._together.wait(DEADLINE)
        return 0


def test_many_partitions_are_synced_side_by_side() -> None:
    flusher = Flusher(ManualClock())
    together, told = threading.Barrier(2), threading.Semaphore(0)
    with flusher._wake:  # it begins with all of them
        for _ in range(2 * SHARED_FROM):
            flusher.submit(MetWhileSyncing(together), lambda fault: told.release())
    for _ in range(2 * SHARED_FROM):
        assert told.acquire(timeout=DEADLINE)
    flusher.stop()
    assert sum(flusher.seconds.counts) == 2 * SHARED_FROM
    assert not any(each.name.startswith("braidlog-syncer") for each in threading.enumerate())


def test_requests_that_come_during_a_sync_share_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = make_partition(SimulatedDisk())
    gate = PartitionLocks(partition, monkeypatch)
    flusher = Flusher(ManualClock())
    told = threading.Semaphore(0)

    def done(fault: StorageFault | None) -> None:
        assert fault is None
        told.release()

    for number in range(5):
        partition.append(batch(b"v"), now_ms=NOW)
        flusher.submit(partition, done)
        if number == 0:
            assert gate.entered.wait(DEADLINE)
    gate.open.set()
    for _ in range(5):
        assert told.acquire(timeout=DEADLINE)
    flusher.stop()
    assert gate.syncs == 2


def test_the_flusher_passes_the_fault_on_and_lives() -> None:
    disk = SimulatedDisk()
    partition, other = make_partition(disk), make_partition(SimulatedDisk())
    partition.append(batch(b"v"), now_ms=NOW)
    other.append(batch(b"v"), now_ms=NOW)
    disk.fail_at = {len(disk.operations) + 1: errno.EIO}
    flusher = Flusher(ManualClock())
    told: list[StorageFault | None] = []
    flusher.submit(partition, told.append)
    flusher.submit(other, told.append)
    flusher.stop()
    assert isinstance(told[0], StorageFault)
    assert told[1] is None
    assert other.durable_offset == 1


def test_the_interval_is_kept_by_the_clock() -> None:
    clock = ManualClock()
    partition = make_partition(SimulatedDisk(), small(flush="interval", flush_interval_ms=1000))
    other = make_partition(SimulatedDisk())
    flusher = Flusher(clock)
    partition.append(batch(b"v"), now_ms=NOW)
    flusher.appended(partition)
    clock.advance(999)
    ran = threading.Event()
    flusher.submit(other, lambda _: ran.set())
    assert ran.wait(DEADLINE)
    assert partition.durable_offset == 0
    clock.advance(1)
    ran.clear()
    flusher.submit(other, lambda _: ran.set())
    assert ran.wait(DEADLINE)
    wait_until(lambda: partition.durable_offset == 1)
    flusher.stop()


def test_an_append_wakes_a_flusher_that_had_nothing_to_do() -> None:
    """It slept for a minute, and an interval of ten milliseconds must not wait for that minute to end."""
    partition = make_partition(SimulatedDisk(), small(flush="interval", flush_interval_ms=10))
    flusher = Flusher(SystemClock())
    ran = threading.Event()
    flusher.submit(partition, lambda _: ran.set())
    assert ran.wait(DEADLINE)
    partition.append(batch(b"v"), now_ms=NOW)
    flusher.appended(partition)
    wait_until(lambda: partition.durable_offset == 1)
    flusher.stop()


@pytest.mark.parametrize("flush", ["os", "interval"])
def test_a_full_window_is_synced_whatever_the_setting(flush: str) -> None:
    settings = small(flush=flush, flush_window_bytes=4096, flush_interval_ms=3_600_000)
    partition = make_partition(SimulatedDisk(), settings)
    flusher = Flusher(ManualClock())
    partition.append(batch(bytes(1000)), now_ms=NOW)
    flusher.appended(partition)
    partition.append(batch(bytes(4000)), now_ms=NOW)
    flusher.appended(partition)
    flusher.stop()
    assert partition.durable_offset == 2


def test_a_window_is_synced_once_however_many_appends_pass_it(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = make_partition(SimulatedDisk(), small(segment_bytes=2**20, flush="os", flush_window_bytes=4096))
    gate = PartitionLocks(partition, monkeypatch)
    flusher = Flusher(ManualClock())
    partition.append(batch(b"v" * 5000), now_ms=NOW)
    flusher.appended(partition)
    assert gate.entered.wait(DEADLINE)
    for _ in range(10):
        partition.append(batch(b"w"), now_ms=NOW)
        flusher.appended(partition)  # the sync that runs has not counted the window down yet
    gate.open.set()
    flusher.stop()
    assert gate.syncs == 1
