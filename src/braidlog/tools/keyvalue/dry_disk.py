"""A `Disk` that discards writes, to open a store without changing it."""

from collections.abc import Sequence

from braidlog.storage.files import Buffer, Disk, File, Lock, join


class DryFile:
    """A file that discards changes; empty without a file below it."""

    def __init__(self, path: str, below: File | None) -> None:
        self.path = path
        self._below = below

    def size(self) -> int:
        return 0 if self._below is None else self._below.size()

    def read_at(self, size: int, position: int) -> bytes:
        return b"" if self._below is None else self._below.read_at(size, position)

    def append(self, parts: Sequence[Buffer], position: int) -> int:  # noqa: ARG002 - the port's
        return sum(map(len, parts))

    def write_at(self, data: Buffer, position: int) -> None: ...
    def truncate(self, size: int) -> None: ...
    def sync(self) -> None: ...
    def forget(self, position: int, size: int) -> None: ...

    def fileno(self) -> int:
        raise AssertionError("a dry-run file has no descriptor")

    def close(self) -> None:
        if self._below is not None:
            self._below.close()


class DryDisk:
    """A `Disk` on top of another, which it never changes."""

    def __init__(self, below: Disk) -> None:
        self._below = below
        self._gone: set[str] = set()

    def create(self, path: str) -> DryFile:
        return DryFile(path, None)

    def open(self, path: str, *, writable: bool) -> DryFile:  # noqa: ARG002 - never writable
        return DryFile(path, self._below.open(path, writable=False))

    def rename(self, old: str, new: str) -> None:  # noqa: ARG002 - the new name is never used
        self._gone.add(old)

    def remove(self, path: str) -> None:
        self._gone.add(path)

    def names(self, folder: str) -> list[str]:
        return [name for name in self._below.names(folder) if join(folder, name) not in self._gone]

    def exists(self, path: str) -> bool:
        return path not in self._gone and self._below.exists(path)

    def is_folder(self, path: str) -> bool:
        return self._below.is_folder(path)

    def remove_folder(self, path: str) -> None: ...
    def make_folder(self, path: str) -> None: ...
    def sync_folder(self, path: str) -> None: ...

    def lock(self, path: str) -> Lock:
        raise AssertionError(f"{path}: a dry-run disk has no locks")
