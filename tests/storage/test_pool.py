"""Open files by path: bounded, and never closed under a reader."""

import os
from pathlib import Path

from braidlog.storage.files import OsDisk
from braidlog.storage.pool import FilePool


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
