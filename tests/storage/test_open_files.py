"""Open files: bounded, never closed under a reader, and none that was written to is closed before it is synced."""

import errno
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.storage.building import IDENTITY, NOW, batch, small

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, OsDisk
from braidlog.storage.log.partition_log import PartitionLog, create_partition
from braidlog.storage.open_files import FilePool
from braidlog.testing.disk import SimulatedDisk, SimulatedFile
from braidlog.testing.image import FileImage


def folder_of(tmp_path: Path, count: int) -> list[str]:
    for number in range(count):
        (tmp_path / str(number)).write_bytes(b"file %d" % number)
    return [str(tmp_path / str(number)) for number in range(count)]


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_the_same_path_is_opened_once(tmp_path: Path) -> None:
    (path,) = folder_of(tmp_path, 1)
    pool = FilePool(OsDisk())
    assert pool.get(path) is pool.get(path)


def test_the_longest_unused_file_leaves_and_closes_when_nobody_reads_it(tmp_path: Path) -> None:
    paths = folder_of(tmp_path, 4)
    pool = FilePool(OsDisk(), open_max=2)
    held = pool.get(paths[0])
    loose = pool.get(paths[1]).fileno()
    pool.get(paths[0])
    pool.get(paths[2])  # the second was used longest ago
    assert not is_open(loose)
    pool.get(paths[3])  # and now the first, which is held
    assert pool.get(paths[0]) is not held
    assert held.read_at(10, 0) == b"file 0"
    descriptor = held.fileno()
    del held
    assert not is_open(descriptor)


def test_a_dropped_path_is_opened_anew(tmp_path: Path) -> None:
    (path,) = folder_of(tmp_path, 1)
    pool = FilePool(OsDisk())
    held = pool.get(path)
    os.unlink(path)
    Path(path).write_bytes(b"another")
    assert pool.get(path).read_at(10, 0) == b"file 0"
    pool.drop(path)
    pool.drop(path)
    assert pool.get(path).read_at(10, 0) == b"another"
    assert held.read_at(10, 0) == b"file 0"


def partitions_of(disk: Disk, pool: FilePool, count: int, folder: str = "") -> list[PartitionLog]:
    made = []
    for number in range(count):
        place, identity = f"{folder}/{number}", IDENTITY._replace(partition=number)
        create_partition(disk, place, identity, small(), pool, now_ms=NOW)
        made.append(PartitionLog(disk, place, identity, small(), pool))
    return made


def open_for_writing(folder: Path) -> int:
    links = [os.readlink(each) if each.exists() else "" for each in Path("/proc/self/fd").iterdir()]
    return sum(link.startswith(str(folder)) and link.endswith(".log") for link in links)


def test_more_partitions_than_files_for_writing(tmp_path: Path) -> None:
    pool = FilePool(OsDisk(), open_max=3)
    logs = partitions_of(OsDisk(), pool, 12, str(tmp_path))
    for value in (b"a", b"b"):
        for log in logs:
            log.append(batch(value), now_ms=NOW)
            log.sync()
            assert pool.writing <= 3
            assert open_for_writing(tmp_path) <= 6  # as many for reading
    for log in logs:
        assert b"a" in log.read(0, 1)
        assert b"b" in log.read(1, 1)
        log.close()
    assert pool.writing == 0


class WatchedDisk(SimulatedDisk):
    """Remembers which files were closed with something in them that no sync has covered."""

    def __init__(self) -> None:
        super().__init__()
        self.closed_unsynced: list[str] = []

    def create(self, path: str) -> SimulatedFile:
        return self._watch(super().create(path))

    def open(self, path: str, *, writable: bool) -> SimulatedFile:
        file = super().open(path, writable=writable)
        return self._watch(file) if writable else file

    def _watch(self, file: SimulatedFile) -> SimulatedFile:
        image = self._file(file.path, "watch")
        weakref.finalize(file, self._closed, file.path, image)
        return file

    def _closed(self, path: str, image: FileImage) -> None:
        if image.pending:
            self.closed_unsynced.append(path)


def test_what_is_not_synced_is_synced_before_its_file_is_closed() -> None:
    disk = WatchedDisk()
    pool = FilePool(disk, open_max=2)
    logs = partitions_of(disk, pool, 5)
    for _ in range(3):
        for log in logs:
            log.append(batch(b"x" * 1500), now_ms=NOW)  # some of them roll
    assert pool.writing <= 2
    assert all(log.durable_offset >= 2 for log in logs)
    assert logs[-1].durable_offset == 2  # still open, and not synced since
    for log in logs:
        log.close()
    assert disk.closed_unsynced == []


def test_a_sync_that_fails_stops_the_partition_whose_file_it_was() -> None:
    disk = SimulatedDisk()
    pool = FilePool(disk, open_max=1)
    first, second = partitions_of(disk, pool, 2)
    second.append(batch(b"kept"), now_ms=NOW)
    first.append(batch(b"lost"), now_ms=NOW)
    disk.fail_at = {len(disk.operations) + 1: errno.EIO}
    second.append(batch(b"kept"), now_ms=NOW)
    second.sync()
    assert second.durable_offset == 2
    with pytest.raises(StorageFault, match="stopped after a fault"):
        first.sync()
    assert first.durable_offset == 0


def test_a_partition_in_use_keeps_its_file() -> None:
    disk = SimulatedDisk()
    pool = FilePool(disk, open_max=1)
    first, second = partitions_of(disk, pool, 2)
    first.append(batch(b"a"), now_ms=NOW)
    with ThreadPoolExecutor(1) as other:
        other.submit(first.lock.acquire).result()
        second.append(batch(b"b"), now_ms=NOW)
        assert pool.writing == 2
        other.submit(first.lock.release).result()
    pool.make_room()
    assert pool.writing == 0


def test_who_grows_keeps_its_file_longer_than_who_does_not() -> None:
    disk = SimulatedDisk()
    pool = FilePool(disk, open_max=8)
    logs = partitions_of(disk, pool, 8)
    for log in logs[:4]:
        log.append(batch(b"a"), now_ms=NOW)
        log.sync()
        log.maybe_close(settled_only=False)
    for log in [*logs[:4], *logs[:4]]:
        log.append(batch(b"b"), now_ms=NOW)
        log.sync()
    pool.make_room()
    assert pool.writing <= 6
    operations = len(disk.operations)
    for log in logs[:4]:
        log.append(batch(b"c"), now_ms=NOW)
    assert len(disk.operations) == operations + 4  # nobody had to let go for them
