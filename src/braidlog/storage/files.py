"""Access the file system: all file access goes through this module.

Does not handle: what the bytes mean. Invariant: every call does all of its work or raises `StorageFault`; a short
write is never a success.

The other modules of storage/ use the protocols `Disk` and `File`. `OsDisk` is the real disk; `braidlog.testing.disk`
tracks which writes were synced, so that a test can simulate a crash at any call.
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

_IOVECS_MAX = 1024  # Linux's IOV_MAX: writev rejects more
_TOO_MANY_OPEN = " (RLIMIT_NOFILE; raise it with `ulimit -n` or LimitNOFILE)"
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class File(Protocol):
    """An open file. Positions are bytes from its start."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def append(self, parts: Sequence[Buffer], position: int) -> int:
        """Write all parts in order, starting at `position` (the end of the written data).

        Return the number of bytes written.
        """
        ...

    def write_at(self, data: Buffer, position: int) -> None: ...

    def read_at(self, size: int, position: int) -> bytes:
        """Return `size` bytes; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Block until all written data is on the disk. After an error the state of the data on the disk is unknown."""
        ...

    def forget(self, position: int, size: int) -> None:
        """Drop this (synced) range from the page cache, so that sustained ingest runs at disk speed."""
        ...

    def fileno(self) -> int:
        """Return the descriptor, for `sendfile`."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A tree of files. A created, renamed or removed name is durable only after `sync_folder` of its parent folder."""

    def create(self, path: str) -> File:
        """Create a new, empty file open for reading and writing. The path must not exist."""
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
        """Create a folder; its parent must exist. Does nothing if the folder exists."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted. Raises `StorageFault` if the folder does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def sync_folder(self, path: str) -> None: ...

    def lock(self, path: str) -> "Lock":
        """Lock the folder for this process, or raise `BrokerError(FOLDER_IN_USE)`."""
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
    """Build a `StorageFault`, with a hint for the operator where one is known."""
    hint = _TOO_MANY_OPEN if error.errno == errno.EMFILE else _whose(path) if error.errno == errno.EACCES else ""
    return StorageFault(f"cannot {doing}: {error.strerror or error}{hint}", path)


def _whose(path: str) -> str:
    """Return why this process has no access to a path: the path's owner or mode, or those of a parent folder."""
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
    """Return whether the disk was full: nothing is damaged, and a retry can succeed."""
    return fault.is_full


def read_whole(disk: Disk, path: str) -> bytes:
    file = disk.open(path, writable=False)
    try:
        return file.read_at(file.size(), 0)
    finally:
        file.close()


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """Create the file with this content. The content is durable, its name not yet."""
    file = disk.create(path)
    try:
        file.write_at(data, 0)
        file.sync()
    finally:
        file.close()


class OsFile:
    """A file descriptor that closes when the last reference to it goes out of scope."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path

    def size(self) -> int:
        with _faults(self.path, "stat"):
            return os.fstat(self._descriptor).st_size

    def append(self, parts: Sequence[Buffer], position: int) -> int:
        # Two parts is the common case.
        total = len(parts[0]) + len(parts[1]) if len(parts) == 2 else sum(map(len, parts))
        try:
            written = os.pwritev(self._descriptor, parts, position) if len(parts) <= _IOVECS_MAX else 0
        except OSError as error:
            raise StorageFault(f"cannot write: {error.strerror or error}", self.path) from error
        if written != total:
            # A short write is real (a file size limit, a nearly full disk): write the rest until the kernel reports why
            # it stopped.
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
        # A slice in use by a sender keeps its file open after the segment was retired; the file closes here.
        with contextlib.suppress(StorageFault):
            self.close()


class OsLock:
    """An advisory lock on an open folder: the kernel releases it when the process ends, also after a crash."""

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
        """Lock the folder that holds `path`; the file at `path` names the process that holds the lock.

        The lock is on the folder: it holds even if the file is missing.
        """
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
    """A file's inode, size and modification time at one point in time."""

    inode: int
    size: int
    modified_ns: int


def file_status(path: str) -> FileStatus | None:
    """Return None if the file does not exist."""
    with _faults(path, "stat"):
        try:
            found = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return FileStatus(found.st_ino, found.st_size, found.st_mtime_ns)


def link(path: str, name: str) -> bool:
    """Add a hard link `name` to the file, which survives the removal of `path`.

    Return False if `path` does not exist.
    """
    with _faults(path, f"link to {name}"):
        try:
            os.link(path, name, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


def remove_tree(disk: Disk, folder: str) -> None:
    """Remove a folder with everything in it."""
    for name in disk.names(folder):
        path = join(folder, name)
        remove_tree(disk, path) if disk.is_folder(path) else disk.remove(path)
    disk.remove_folder(folder)


def _holder(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as note:
        return note.read(100).strip() or "another process"
    return "another process"


def join(folder: str, *names: str) -> str:
    """Join paths here, so that no other module of storage/ imports `os`."""
    return os.path.join(folder, *names)


def parent(path: str) -> str:
    """Return the folder that holds the name of `path`."""
    return os.path.dirname(os.path.abspath(path))
