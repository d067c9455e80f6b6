"""Port of a backup store: a folder (here) or an object store (`object_place.py`).

A file appears under its name complete or not at all. Only one process writes at a time. Does not handle: the content of
the files.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Final, Protocol

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, join, parent, read_whole, write_whole

_NEW: Final = ".new"
_FILE: Final = "file://"


class Place(Protocol):
    """A tree of named files; `/` separates the parts of a name."""

    @property
    def path(self) -> str:
        """The path or URI of the store."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the names below a folder with their sizes; empty if it does not exist."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a file while writing; None if it does not exist."""
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises `StorageFault` if it does not exist."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Lock the store for writing and removing. Raises `BrokerError(FOLDER_IN_USE)` if another process holds the lock."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        ...

    def settle(self, names: Iterable[str]) -> None:
        """Return when these written or removed names are durable."""
        ...

    def remove(self, name: str) -> None: ...


def open_place(disk: Disk, path: str, properties: Mapping[str, str]) -> Place:
    """Open a folder or a URI; `properties`: of its store, in pyiceberg's names."""
    if path.startswith(_FILE):
        path = path.removeprefix(_FILE)
    if "://" not in path:
        return FolderPlace(disk, path)
    from braidlog.tools.backup.object_place import ObjectPlace  # noqa: PLC0415 - folders do not need Arrow

    return ObjectPlace(path, properties)


class FolderPlace:
    """Backup store in a folder; the writing process holds its `LOCK`.

    <name>.new    an incomplete file, which is overwritten
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path

    def sizes(self, folder: str) -> dict[str, int]:
        if not self._disk.is_folder(join(self.path, folder)):
            return {}
        found: dict[str, int] = {}
        for name in self._disk.names(join(self.path, folder)):
            below = join(folder, name)
            found |= self.sizes(below) if self._disk.is_folder(join(self.path, below)) else {below: self._size(below)}
        return found

    def size(self, name: str) -> int | None:
        return self._size(name) if self._disk.exists(join(self.path, name)) else None

    def _size(self, name: str) -> int:
        with closing(self._disk.open(join(self.path, name), writable=False)) as file:
            return file.size()

    def read(self, name: str) -> bytes:
        place = join(self.path, name)
        if not self._disk.exists(place):
            raise StorageFault("it is missing", place)
        return read_whole(self._disk, place)

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._make(self.path)
        lock = self._disk.lock(join(self.path, "LOCK"))
        try:
            yield
        finally:
            lock.release()

    def _make(self, path: str) -> None:
        """Make a folder and its parents durably."""
        if not self._disk.exists(path):
            self._make(parent(path))
            self._disk.make_folder(path)
            self._disk.sync_folder(parent(path))

    def write(self, name: str, data: bytes) -> None:
        place = join(self.path, name)
        self._make(parent(place))
        if self._disk.exists(place + _NEW):
            self._disk.remove(place + _NEW)
        write_whole(self._disk, place + _NEW, data)
        self._disk.rename(place + _NEW, place)

    def settle(self, names: Iterable[str]) -> None:
        for folder in sorted({parent(join(self.path, name)) for name in names}):
            self._disk.sync_folder(folder)

    def remove(self, name: str) -> None:
        self._disk.remove(join(self.path, name))
