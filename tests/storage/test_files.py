"""The real disk: all of it or a fault, and never through a link."""

import errno
import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.files import OsDisk, join, parent


@pytest.fixture
def disk() -> OsDisk:
    return OsDisk()


SHORT = """
import resource, signal, sys
from braidlog.model.errors import StorageFault
from braidlog.storage.files import OsDisk
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = OsDisk().create(sys.argv[1])
assert file.append([b"a" * 600], 0) == 600
try:
    file.append([b"b" * 300, b"c" * 300], 600)
except StorageFault as fault:
    print(fault, file.size())
try:
    file.write_at(b"d" * 10, 995)
except StorageFault as fault:
    print(fault, file.size())
"""


def test_a_short_write_is_never_a_success(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    done = subprocess.run([sys.executable, "-c", SHORT, path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{path}: cannot write: File too large 1000"] * 2


def test_more_parts_than_the_kernel_takes_at_once(disk: OsDisk, tmp_path: Path) -> None:
    file = disk.create(str(tmp_path / "f"))
    parts = [b"%04d" % n for n in range(3000)]
    assert file.append(parts, 0) == 12000
    assert file.append([memoryview(b"xyz")[1:], bytearray(b"!")], 12000) == 3
    assert file.read_at(20000, 0) == b"".join(parts) + b"yz!"


def test_a_write_that_the_kernel_cuts_is_continued(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.create(str(tmp_path / "f"))
    real = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, bytes(parts[0])[:2], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:3], at))
    assert file.append([b"0123456789", b"abcdef"], 0) == 16
    assert file.read_at(99, 0) == b"0123456789abcdef"
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(StorageFault, match="the disk took no bytes"):
        file.write_at(b"x", 0)


def test_a_read_that_the_kernel_cuts_is_continued(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.create(str(tmp_path / "f"))
    file.write_at(b"0123456789", 0)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 3), at))
    assert file.read_at(8, 1) == b"12345678"
    assert file.read_at(50, 4) == b"456789"


def test_create_refuses_what_exists_and_open_what_does_not(disk: OsDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    disk.create(path).close()
    with pytest.raises(StorageFault, match="cannot create: File exists") as caught:
        disk.create(path)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.path == path
    with pytest.raises(StorageFault, match="cannot open: No such file"):
        disk.open(path + "x", writable=False)


def test_links_are_not_followed(disk: OsDisk, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "secret")
    attempts: list[Callable[[], object]] = [
        lambda: disk.open(str(link), writable=False),
        lambda: disk.open(str(link), writable=True),
        lambda: disk.create(str(link)),
    ]
    for attempt in attempts:
        with pytest.raises(StorageFault):
            attempt()
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_a_file_opened_to_read_is_not_written(disk: OsDisk, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    file = disk.open(str(tmp_path / "f"), writable=False)
    attempts: list[Callable[[], object]] = [
        lambda: file.write_at(b"x", 0),
        lambda: file.append([b"x"], 0),
        lambda: file.truncate(0),
    ]
    for attempt in attempts:
        with pytest.raises(StorageFault):
            attempt()
    assert (file.size(), file.read_at(9, 0)) == (3, b"abc")


def test_names_and_folders(disk: OsDisk, tmp_path: Path) -> None:
    folder = str(tmp_path / "d")
    assert not disk.exists(folder)
    disk.make_folder(folder)
    disk.make_folder(folder)
    for name in ("b", "a", "c"):
        disk.create(join(folder, name)).close()
    disk.rename(join(folder, "b"), join(folder, "c"))
    assert disk.names(folder) == ["a", "c"]
    assert disk.is_folder(folder)
    assert not disk.is_folder(join(folder, "a"))
    assert not disk.exists(join(folder, "a", "below a file"))
    disk.sync_folder(folder)
    with pytest.raises(StorageFault, match="cannot create: File exists"):
        disk.make_folder(join(folder, "a"))
    with pytest.raises(StorageFault, match="not empty"):
        disk.remove_folder(folder)
    for name in ("a", "c"):
        disk.remove(join(folder, name))
    disk.remove_folder(folder)
    for attempt in (
        lambda: disk.names(folder),
        lambda: disk.sync_folder(folder),
        lambda: disk.remove(folder),
        lambda: disk.rename(folder, folder + "x"),
    ):
        with pytest.raises(StorageFault, match="No such file"):
            attempt()
    assert parent(folder) == str(tmp_path)


def test_a_path_that_cannot_be_looked_at_is_a_fault_and_not_absent(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(StorageFault, match="cannot stat: Permission denied"):
        disk.exists("/x")


def test_who_may_not_read_is_told_whose_it_is(disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(StorageFault, match=r"cannot list: Permission denied$"):
        disk.names(str(tmp_path))
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o600)
    with pytest.raises(StorageFault, match=r"\(\S+/folder has mode 600: `chmod -R u\+rwX` lets its owner in\)$"):
        disk.names(str(folder))
    mine = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    told = f"belongs to user {mine}, and this process runs as 54321: run it as {mine}, or give the whole data folder to 54321"
    for path in (folder, folder / "what is not there"):
        with pytest.raises(StorageFault, match=f"/folder {told}"):
            disk.names(str(path))


def test_errors_of_sync_are_faults(disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.create(str(tmp_path / "f"))

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(StorageFault, match="cannot sync: Input/output error"):
        file.sync()


def test_a_file_closes_once_and_by_itself(disk: OsDisk, tmp_path: Path) -> None:
    file = disk.create(str(tmp_path / "f"))
    file.forget(0, 100)
    descriptor = file.fileno()
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(StorageFault, match="Bad file descriptor"):
        file.size()


def test_the_lock_says_who_holds_it(disk: OsDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "LOCK")
    lock = disk.lock(path)
    with pytest.raises(BrokerError, match=f"is in use by process {os.getpid()}") as caught:
        disk.lock(path)
    assert caught.value.reason is Reason.FOLDER_IN_USE
    lock.release()
    disk.lock(path).release()


def test_the_folder_is_locked_without_its_file_too(disk: OsDisk, tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    lock = disk.lock(str(path))
    path.unlink()
    with pytest.raises(BrokerError, match="is in use by another process"):
        disk.lock(str(path))
    assert not path.exists(), "who was refused wrote nothing"
    lock.release()
