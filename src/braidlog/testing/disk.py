"""An in-memory disk with injected failures and crashes, at any call.

Models what Linux guarantees for written and synced data. Does not handle: threads; use it from one thread.
The live view (the page cache) shows every change; only `sync` and `sync_folder` make one durable.

Deliberately stricter than most file systems: syncing a new file does not make its name durable, and a rename between
folders is two changes of names, of which a crash may keep either, both or none. More lenient than some: a failed sync
loses exactly the un-synced bytes, not others of the same page. After a failed `sync_folder` the names stay pending,
so that a later one can still make them durable.
"""

import errno
import posixpath
from collections.abc import Iterator, Sequence
from random import Random

from braidlog.model.errors import BrokerError, Reason
from braidlog.storage.files import Buffer
from braidlog.testing.crashes import crash_trees
from braidlog.testing.faults import Crash, Faults, Operation, fault
from braidlog.testing.image import (
    FileImage,
    FolderImage,
    Link,
    Move,
    Node,
    Truncate,
    Unlink,
    Write,
    copy_tree,
    fingerprint,
    list_tree,
)

__all__ = ["Crash", "Operation", "SimulatedDisk", "SimulatedFile", "SimulatedLock"]


class SimulatedDisk(Faults):
    """A `Disk`. The root folder "/" always exists; relative paths start there."""

    def __init__(self, root: FolderImage | None = None, sequence: int = 0) -> None:
        super().__init__()
        self._root = FolderImage() if root is None else root
        self._sequence = sequence
        self._locked: set[FileImage] = set()

    # The calls of `Disk`.

    def create(self, path: str) -> "SimulatedFile":
        with self.mutation("create", path):
            folder, name = self._place(path, "create")
            if name in folder.entries:
                raise fault(errno.EEXIST, "create", path)
            image = FileImage()
            folder.change(Link(self.next_sequence(), name, image))
            return SimulatedFile(self, image, path, writable=True)

    def open(self, path: str, *, writable: bool) -> "SimulatedFile":
        self.check_alive()
        return SimulatedFile(self, self._file(path, "open"), path, writable=writable)

    def rename(self, old: str, new: str) -> None:
        with self.mutation("rename", old):
            doing = f"rename to {new}"
            old_folder, old_name = self._place(old, doing)
            new_folder, new_name = self._place(new, doing)
            node = old_folder.entries.get(old_name)
            if node is None:
                raise fault(errno.ENOENT, doing, old)
            target = new_folder.entries.get(new_name)
            if target is node:
                return  # POSIX: both names refer to one file, so rename does nothing
            refusal = _refusal_to_replace(node, target)
            if isinstance(node, FolderImage) and old_folder is not new_folder:
                # Two changes of names could leave the folder inside itself; storage never does this.
                refusal = errno.EXDEV
            if refusal is not None:
                raise fault(refusal, doing, old)
            if old_folder is new_folder:
                old_folder.change(Move(self.next_sequence(), old_name, new_name, node))
            else:
                new_folder.change(Link(self.next_sequence(), new_name, node))
                old_folder.change(Unlink(self.next_sequence(), old_name))

    def remove(self, path: str) -> None:
        with self.mutation("remove", path):
            self._file(path, "remove")
            folder, name = self._place(path, "remove")
            folder.change(Unlink(self.next_sequence(), name))

    def remove_folder(self, path: str) -> None:
        with self.mutation("remove_folder", path):
            if self._folder(path, "remove").entries:
                raise fault(errno.ENOTEMPTY, "remove", path)
            folder, name = self._place(path, "remove")
            folder.change(Unlink(self.next_sequence(), name))

    def make_folder(self, path: str) -> None:
        with self.mutation("make_folder", path):
            if isinstance(self._find(path), FolderImage):
                return
            folder, name = self._place(path, "create")
            if name in folder.entries:
                raise fault(errno.EEXIST, "create", path)
            folder.change(Link(self.next_sequence(), name, FolderImage()))

    def names(self, folder: str) -> list[str]:
        self.check_alive()
        return sorted(self._folder(folder, "list").entries)

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self._find(path) is not None

    def is_folder(self, path: str) -> bool:
        self.check_alive()
        return isinstance(self._find(path), FolderImage)

    def sync_folder(self, path: str) -> None:
        with self.mutation("sync_folder", path):
            self._folder(path, "sync").sync()

    def lock(self, path: str) -> "SimulatedLock":
        """Lock by a file, created if it does not exist, as on the real disk. Its name is not synced."""
        self.check_alive()
        folder, name = self._place(path, "lock")
        if name not in folder.entries:
            folder.change(Link(self.next_sequence(), name, FileImage()))
        image = self._file(path, "lock")
        if image in self._locked:
            raise BrokerError(
                Reason.FOLDER_IN_USE,
                f"{posixpath.dirname(path)} is in use; one process at a time owns a data folder",
            )
        self._locked.add(image)
        return SimulatedLock(self._locked, image)

    def next_sequence(self) -> int:
        """Number a change; crash states keep or lose pending changes in this order."""
        self._sequence += 1
        return self._sequence

    # Methods for tests; all of them work after a crash too.

    def files(self) -> list[str]:
        """The absolute paths of all files, sorted."""
        return [path for path, node in list_tree(self._root) if isinstance(node, FileImage)]

    def content(self, path: str) -> bytes:
        return self._file(path, "read").content()

    def fingerprint(self) -> int:
        """Return a number that is equal for disks with the same paths and bytes, in the same process."""
        return fingerprint(self._root)

    def crash_states(
        self,
        limit: int | None = None,
        rng: Random | None = None,
        *,
        prefixes_max: int = 256,
        seen: set[int] | None = None,
    ) -> "Iterator[tuple[str, SimulatedDisk]]":
        """Yield (label, disk) for each possible state after a power cut now; crashes.py has the table of them.

        Each state is yielded once; share `seen` (fingerprints) between calls to skip states of earlier calls. With
        `rng` the order is random, so that `limit` takes a fair sample. Of more than `prefixes_max` pending changes
        only that many prefixes are tried. Consume the states before changing this disk again.
        """
        trees = crash_trees(
            self._root, limit=limit, rng=rng, prefixes_max=prefixes_max, seen=set() if seen is None else seen
        )
        for label, root in trees:
            yield label, SimulatedDisk(root)

    def after_kill(self) -> "SimulatedDisk":
        """Return the disk after kill -9: the process and its locks are gone, the page cache stays."""
        return SimulatedDisk(copy_tree(self._root), self._sequence)

    def copy(self) -> "SimulatedDisk":
        """Return an independent copy, with counters and faults, without open files, locks and `on_operation`."""
        disk = self.after_kill()
        disk.stop_at, disk.stop_when = self.stop_at, self.stop_when
        disk.fail_at, disk.short = dict(self.fail_at), self.short
        disk.operations = list(self.operations)
        disk.crashed = self.crashed
        return disk

    def flip_bit(self, path: str, bit_index: int) -> None:
        """Flip one bit, live and durable. Like all damage it makes the rest of the file durable as it is."""
        content = bytearray(self.content(path))
        content[bit_index // 8] ^= 1 << (bit_index % 8)
        self._file(path, "damage").replace(bytes(content))

    def cut(self, path: str, size: int) -> None:
        self._file(path, "damage").replace(self.content(path)[:size])

    def zero(self, path: str, start: int, end: int) -> None:
        content = self.content(path)
        end = min(end, len(content))
        self._file(path, "damage").replace(content[:start] + bytes(max(0, end - start)) + content[max(start, end) :])

    def drop(self, path: str) -> None:
        """Remove a file and its name durably; the other names of its folder become durable as they are."""
        self._file(path, "damage")
        folder, name = self._place(path, "damage")
        folder.change(Unlink(self.next_sequence(), name))
        folder.sync()

    # Finding images by path.

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in _split(path):
            if not isinstance(node, FolderImage):
                return None
            node = node.entries.get(name)
        return node

    def _file(self, path: str, doing: str) -> FileImage:
        node = self._find(path)
        if not isinstance(node, FileImage):
            raise fault(errno.ENOENT if node is None else errno.EISDIR, doing, path)
        return node

    def _folder(self, path: str, doing: str) -> FolderImage:
        node = self._find(path)
        if not isinstance(node, FolderImage):
            raise fault(errno.ENOENT if node is None else errno.ENOTDIR, doing, path)
        return node

    def _place(self, path: str, doing: str) -> tuple[FolderImage, str]:
        """Return the folder that holds (or would hold) the path's last name, and that name."""
        names = _split(path)
        if not names:
            raise fault(errno.EBUSY, doing, path)
        node: Node | None = self._root
        for name in names[:-1]:
            node = node.entries.get(name) if isinstance(node, FolderImage) else None
        if not isinstance(node, FolderImage):
            raise fault(errno.ENOENT if node is None else errno.ENOTDIR, doing, path)
        return node, names[-1]


class SimulatedFile:
    """A `File` that keeps its image when its name is renamed or removed."""

    def __init__(self, disk: SimulatedDisk, image: FileImage, path: str, *, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._image = image
        self._writable = writable
        self._closed = False

    def size(self) -> int:
        self._check_open("stat")
        return self._image.size()

    def append(self, parts: Sequence[Buffer], position: int) -> int:
        data = b"".join(parts)
        self._write("append", data, position)
        return len(data)

    def write_at(self, data: Buffer, position: int) -> None:
        self._write("write_at", bytes(data), position)

    def read_at(self, size: int, position: int) -> bytes:
        self._check_open("read")
        if size < 0 or position < 0:
            raise fault(errno.EINVAL, "read", self.path)
        return self._image.read(position, position + size)

    def truncate(self, size: int) -> None:
        self._check_writable("truncate")
        if size < 0:
            raise fault(errno.EINVAL, "truncate", self.path)
        with self._disk.mutation("truncate", self.path, size):
            self._image.change(Truncate(self._disk.next_sequence(), size))

    def sync(self) -> None:
        self._check_open("sync")
        with self._disk.mutation("sync", self.path, on_failure=self._image.fail_sync):
            self._image.sync()

    def forget(self, position: int, size: int) -> None:
        pass

    def fileno(self) -> int:
        raise fault(errno.EBADF, "give a descriptor", self.path)

    def close(self) -> None:
        # Allowed after a crash: it is called from `finally` and `__del__`, and changes nothing on any disk.
        self._closed = True

    def _write(self, kind: str, data: bytes, position: int) -> None:
        self._check_writable("write")
        if position < 0:
            raise fault(errno.EINVAL, "write", self.path)

        def write(part: bytes) -> None:
            if part:
                self._image.change(Write(self._disk.next_sequence(), position, part))

        with self._disk.mutation(kind, self.path, len(data), on_failure=lambda: write(data[: self._disk.short])):
            write(data)

    def _check_open(self, doing: str) -> None:
        self._disk.check_alive()
        if self._closed:
            raise fault(errno.EBADF, doing, self.path)

    def _check_writable(self, doing: str) -> None:
        self._check_open(doing)
        if not self._writable:
            raise fault(errno.EBADF, doing, self.path)


class SimulatedLock:
    """Held until released, or until the process dies."""

    def __init__(self, locked: set[FileImage], image: FileImage) -> None:
        self._locked = locked
        self._image = image

    def release(self) -> None:
        self._locked.discard(self._image)


def _split(path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in ("", ".")]
    assert ".." not in names, f"{path}: storage never uses '..'"
    return names


def _refusal_to_replace(node: Node, target: Node | None) -> int | None:
    """Return the errno with which a rename onto `target` fails, or None."""
    if target is None:
        return None
    if isinstance(node, FileImage):
        return errno.EISDIR if isinstance(target, FolderImage) else None
    if isinstance(target, FileImage):
        return errno.ENOTDIR
    return errno.ENOTEMPTY if target.entries else None
