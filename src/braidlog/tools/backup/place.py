"""Where back-ups are kept, as a port: a folder (here) or an object store (`object_place.py`).

Knows: how things appear whole, when they are durable, who may write. Refuses to know: what they are.
Invariants: what is read under a name was written there at once and to its end. One process at a time writes.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Final, Protocol

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, join, parent, read_whole, write_whole

_NEW: Final = ".new"
_FILE: Final = "file://"


class Place(Protocol):
    """A tree of named things; `/` stands between the parts of a name."""

    @property
    def path(self) -> str:
        """What people call it."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """The names below a folder, and how many bytes each has; none if it is not there."""
        ...

    def size(self, name: str) -> int | None:
        """Of what is there while one writes; None if it is not."""
        ...

    def read(self, name: str) -> bytes:
        """`StorageFault` if it is not there."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """The right to write and to remove, for one at a time; `BrokerError(FOLDER_IN_USE)` if another has it."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """All of it appears under this name, or nothing."""
        ...

    def settle(self, names: Iterable[str]) -> None:
        """Return when these names, written or removed, survive whatever happens."""
        ...

    def remove(self, name: str) -> None: ...


def open_place(disk: Disk, path: str, properties: Mapping[str, str]) -> Place:
    """A folder, or a URI; `properties`: of its store, as pyiceberg calls them."""
    if path.startswith(_FILE):
        path = path.removeprefix(_FILE)
    if "://" not in path:
        return FolderPlace(disk, path)
    from braidlog.tools.backup.object_place import ObjectPlace  # noqa: PLC0415 - folders do without Arrow

    return ObjectPlace(path, properties)


class FolderPlace:
    """A folder of a disk; `LOCK` in it is held by the one process that writes.

    <name>.new    one that was never finished: written over
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
        """Durable in the folder that holds it, and so are those above."""
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
