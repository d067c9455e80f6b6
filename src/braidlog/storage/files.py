"""The only door to the operating system's files.

Knows: system calls, their short counts and their errors. Refuses to know: what the bytes mean.
Invariant: every call either did all of what it was asked or raised `StorageFault`; a short write is never a success.

`Disk` and `File` are what the rest of storage/ speaks to. `OsDisk` is the real one; `braidlog.testing.disk` has one
that remembers what was synced and what was not, so that a crash can be played at any call.
"""

import contextlib
import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from braidlog.model.errors import BrokerError, Reason, StorageFault

Buffer = bytes | bytearray | memoryview

_IOVECS_MAX = 1024  # Linux's IOV_MAX: writev refuses more
_TOO_MANY_OPEN = " (RLIMIT_NOFILE; raise it with `ulimit -n` or LimitNOFILE)"
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class File(Protocol):
    """An open file. Positions are bytes from its start."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def append(self, parts: Sequence[Buffer], position: int) -> int:
        """Write all parts, in order, starting at `position` (the end of what was written). Return the bytes written."""
        ...

    def write_at(self, data: Buffer, position: int) -> None: ...

    def read_at(self, size: int, position: int) -> bytes:
        """Return `size` bytes, fewer only where the file ends."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when everything written is on the disk. After an error nothing may be assumed about what is."""
        ...

    def forget(self, position: int, size: int) -> None:
        """Let the page cache drop this (synced) range: sustained ingest then runs at disk speed."""
        ...

    def fileno(self) -> int:
        """The descriptor for `sendfile`."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A tree of files. A name made, renamed or removed is durable only after `sync_folder` of the folder that holds it."""

    def create(self, path: str) -> File:
        """Create a new, empty file open for reading and writing. It must not exist."""
        ...

    def open(self, path: str, *, writable: bool) -> File: ...

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing `new` if it exists."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def make_folder(self, path: str) -> None:
        """Create a folder; its parent must exist. An existing folder is fine."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted. A folder that is not there is a `StorageFault`."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def sync_folder(self, path: str) -> None: ...

    def lock(self, path: str) -> "Lock":
        """Take the folder for this process alone, or raise `BrokerError(FOLDER_IN_USE)`."""
        ...


class Lock(Protocol):
    def release(self) -> None: ...


@contextlib.contextmanager
def _faults(path: str, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _fault(error, path, doing) from error


def _fault(error: OSError, path: str, doing: str) -> StorageFault:
    """With what to do about it, where that is known."""
    hint = _TOO_MANY_OPEN if error.errno == errno.EMFILE else _whose(path) if error.errno == errno.EACCES else ""
    return StorageFault(f"cannot {doing}: {error.strerror or error}{hint}", path)


def _whose(path: str) -> str:
    """Why this process may not use a path: whose it is, or the folder that keeps it from being looked at."""
    try:
        found = os.stat(path)
    except OSError:
        above = parent(path)
        return "" if above == path else _whose(above)
    me = os.geteuid()
    if found.st_uid == me:
        mode, needed = stat.S_IMODE(found.st_mode), 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
        return f" ({path} has mode {mode:03o}: `chmod -R u+rwX` lets its owner in)" if needed & ~mode else ""
    owner, mine = _user(found.st_uid), _user(me)
    return (
        f" ({path} belongs to user {owner}, and this process runs as {mine}: run it as {owner}, or give the whole data folder to "
        f"{mine} with `chown -R {mine}`)"
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def is_full(fault: StorageFault) -> bool:
    """Whether the disk refused for want of room: nothing is broken, and room can come back."""
    return fault.is_full


def read_whole(disk: Disk, path: str) -> bytes:
    file = disk.open(path, writable=False)
    try:
        return file.read_at(file.size(), 0)
    finally:
        file.close()


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """Create the file with these bytes, durable but for its name."""
    file = disk.create(path)
    try:
        file.write_at(data, 0)
        file.sync()
    finally:
        file.close()


class OsFile:
    """A file descriptor that closes itself when the last holder lets go of it."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path

    def size(self) -> int:
        with _faults(self.path, "stat"):
            return os.fstat(self._descriptor).st_size

    def append(self, parts: Sequence[Buffer], position: int) -> int:
        total = len(parts[0]) + len(parts[1]) if len(parts) == 2 else sum(map(len, parts))  # two: nearly always
        try:
            written = os.pwritev(self._descriptor, parts, position) if len(parts) <= _IOVECS_MAX else 0
        except OSError as error:
            raise StorageFault(f"cannot write: {error.strerror or error}", self.path) from error
        if written != total:
            # A short write is real (a file size limit, a nearly full disk): go on from where it stopped until the
            # kernel says why it stopped.
            rest = memoryview(b"".join(parts))[written:]
            self.write_at(rest, position + written)
        return total

    def write_at(self, data: Buffer, position: int) -> None:
        rest = memoryview(data)
        with _faults(self.path, "write"):
            while rest:
                written = os.pwrite(self._descriptor, rest, position)
                if written == 0:
                    raise OSError(errno.EIO, "the disk took no bytes")
                rest = rest[written:]
                position += written

    def read_at(self, size: int, position: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, position)
            while len(data) < size:
                more = os.pread(self._descriptor, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise StorageFault(f"cannot read: {error.strerror or error}", self.path) from error
        return data

    def truncate(self, size: int) -> None:
        with _faults(self.path, "truncate"):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        with _faults(self.path, "sync"):
            os.fdatasync(self._descriptor)

    def forget(self, position: int, size: int) -> None:
        with _faults(self.path, "advise"):
            os.posix_fadvise(self._descriptor, position, size, os.POSIX_FADV_DONTNEED)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with _faults(self.path, "close"):
                os.close(descriptor)

    def __del__(self) -> None:
        # A slice handed to a sender keeps its file alive after the segment was retired; this is where it ends.
        with contextlib.suppress(StorageFault):
            self.close()


class OsLock:
    """An advisory lock held by an open folder: the kernel releases it when the process dies, however it dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class OsDisk:
    """The machine's file system."""

    def create(self, path: str) -> OsFile:
        with _faults(path, "create"):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            return OsFile(os.open(path, flags, 0o640), path)

    def open(self, path: str, *, writable: bool) -> OsFile:
        with _faults(path, "open"):
            flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
            return OsFile(os.open(path, flags), path)

    def rename(self, old: str, new: str) -> None:
        with _faults(old, f"rename to {new}"):
            os.replace(old, new)

    def remove(self, path: str) -> None:
        with _faults(path, "remove"):
            os.unlink(path)

    def remove_folder(self, path: str) -> None:
        with _faults(path, "remove"):
            os.rmdir(path)

    def make_folder(self, path: str) -> None:
        with _faults(path, "create"):
            try:
                os.mkdir(path, 0o750)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise

    def names(self, folder: str) -> list[str]:
        with _faults(folder, "list"):
            return sorted(os.listdir(folder))

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except OSError as error:
            if error.errno in _ABSENT:
                return False
            raise _fault(error, path, "stat") from error
        return True

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def sync_folder(self, path: str) -> None:
        with _faults(path, "sync"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def lock(self, path: str) -> OsLock:
        """Lock the folder that `path` is in; `path` says who holds it. Without that file the folder is as locked as with it."""
        with _faults(path, "lock"):
            folder = parent(path)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with open(path, "w", encoding="utf-8") as note:
                    note.write(f"process {os.getpid()}\n")
            except BlockingIOError as error:
                os.close(descriptor)
                raise BrokerError(
                    Reason.FOLDER_IN_USE,
                    f"{folder} is in use by {_holder(path)}; one process at a time owns a data folder",
                ) from error
            except OSError:
                os.close(descriptor)
                raise
            return OsLock(descriptor)


class FileStatus(NamedTuple):
    """What a file was when it was looked at."""

    inode: int
    size: int
    modified_ns: int


def file_status(path: str) -> FileStatus | None:
    """None: there is no such file."""
    with _faults(path, "stat"):
        try:
            found = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return FileStatus(found.st_ino, found.st_size, found.st_mtime_ns)


def link(path: str, name: str) -> bool:
    """Give the file a second name, under which it stays when the first one goes; False if there is no such file."""
    with _faults(path, f"link to {name}"):
        try:
            os.link(path, name, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


def remove_tree(disk: Disk, folder: str) -> None:
    """With all that is in it."""
    for name in disk.names(folder):
        path = join(folder, name)
        remove_tree(disk, path) if disk.is_folder(path) else disk.remove(path)
    disk.remove_folder(folder)


def _holder(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as note:
        return note.read(100).strip() or "another process"
    return "another process"


def join(folder: str, *names: str) -> str:
    """Paths are joined here so that no other module of storage/ needs `os`."""
    return os.path.join(folder, *names)


def parent(path: str) -> str:
    """The folder that holds the name of `path`."""
    return os.path.dirname(os.path.abspath(path))
