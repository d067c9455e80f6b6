"""A small ext4 of the campaign's own, whose power can be cut; where that may not be done, a plain folder and the reason.

FS_IOC_SHUTDOWN without a flush of the journal stops the file system where it is: what was not synced is lost when it is mounted
again. It needs root, loop devices and e2fsprogs. It is mounted where only this process and its children see it: when the last of
them has ended, however that was, the mount and its loop device are gone.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Self

_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN
_NO_FLUSH = 2  # EXT4_GOING_FLAGS_NOLOGFLUSH
_OWN_MOUNTS = 0x20000  # CLONE_NEWNS
SIZE_BYTES = 1024 * 1024 * 1024
"""Of the image; it takes only what is written."""
UNMOUNT_SECONDS_MAX = 60


class Disk:
    """`data` is where a node may keep its data: on a file system of its own where `reason` is empty.

    Made by a process that has no second thread yet: only threads that are started later see the mount.
    """

    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk.img"
        self._mount = folder / "disk"
        self._mount.mkdir()
        self.reason = self._make()

    @property
    def data(self) -> Path:
        return self._mount / "data"

    @property
    def aside(self) -> Path:
        """For files that lost their names: on the same file system."""
        return self._mount / "aside"

    def _make(self) -> str:
        missing = [each for each in ("mkfs.ext4", "mount", "umount", "losetup") if shutil.which(each) is None]
        if os.geteuid() != 0:
            return "only root may mount a file system"
        if missing:
            return f"not installed: {', '.join(missing)}"
        if ctypes.CDLL(None, use_errno=True).unshare(_OWN_MOUNTS) != 0:
            return f"no mounts of its own: {os.strerror(ctypes.get_errno())}"
        with self._image.open("wb") as image:
            image.truncate(SIZE_BYTES)
        try:
            _run("mount", "--make-rprivate", "/")
            _run("mkfs.ext4", "-q", "-F", str(self._image))
            self._mount_it()
        except subprocess.CalledProcessError as error:
            self._image.unlink()
            return f"{error.cmd[0]}: {error.stderr.decode(errors='replace').strip()}"
        return ""

    def _mount_it(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self._mount))

    def cut_power(self) -> None:
        """From now on nothing reaches the disk."""
        descriptor = os.open(self._mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_FLUSH))
        finally:
            os.close(descriptor)

    def power_on(self) -> None:
        """Nobody may have a file open on it any more; a child of a killed node has for a moment."""
        self._unmount()
        self._mount_it()

    def _unmount(self) -> None:
        deadline = time.monotonic() + UNMOUNT_SECONDS_MAX
        while True:
            try:
                _run("umount", str(self._mount))
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(["sync", "-f", str(self._image.parent)], check=False, timeout=0.1)
            else:
                return

    def fill(self) -> None:
        """Nobody can write any more; `clear` makes room again."""
        room = os.statvfs(self._mount)
        with contextlib.suppress(OSError), (self._mount / "ballast").open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, room.f_bfree * room.f_frsize)
        with contextlib.suppress(OSError), (self._mount / "ballast").open("ab") as ballast:
            while True:
                ballast.write(bytes(4096))
                ballast.flush()

    def clear(self) -> None:
        (self._mount / "ballast").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.reason:
            self._unmount()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
