"""The state of a simulated file or folder: live, durable and pending changes.

`base` objects are never changed in place, so that any number of trees may share them. Does not handle: paths,
injected faults, which pending changes survive a crash.
"""

from typing import NamedTuple, TypeAlias

_SETTLED_BYTES_MAX = 64 * 1024  # merge synced changes into the base when they exceed its size by this much


class Write(NamedTuple):
    sequence: int
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        gap = self.position - len(content)
        if gap > 0:
            content.extend(bytes(gap))
        content[self.position : self.position + len(self.data)] = self.data

    def sized(self) -> "Extend":
        """Return this write as it looks if its new length reached the disk and its bytes did not."""
        return Extend(self.sequence, self.position + len(self.data))


class Truncate(NamedTuple):
    sequence: int
    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


class Extend(NamedTuple):
    """Sets a minimum length of the file; new bytes are zeros, old bytes stay."""

    sequence: int
    size: int

    def apply(self, content: bytearray) -> None:
        content.extend(bytes(max(0, self.size - len(content))))


Change: TypeAlias = Write | Truncate | Extend


class FileImage:
    """One file, under any number of names. `base` + `settled` is durable; a power cut may lose `pending`."""

    __slots__ = ("_live", "_settled", "_settled_bytes", "base", "pending")

    def __init__(self, base: bytes = b"") -> None:
        self.base = base
        self.pending: list[Change] = []
        self._settled: list[Change] = []
        self._settled_bytes = 0
        self._live: bytearray | None = None  # None: the same as `base`; most files of a crash state are only read

    def size(self) -> int:
        return len(self.base if self._live is None else self._live)

    def read(self, start: int, end: int) -> bytes:
        return self.base[start:end] if self._live is None else bytes(self._live[start:end])

    def content(self) -> bytes:
        return self.base if self._live is None else bytes(self._live)

    def change(self, change: Change) -> None:
        if self._live is None:
            self._live = bytearray(self.base)
        change.apply(self._live)
        self.pending.append(change)

    def sync(self) -> None:
        # Nothing is copied here: a log that syncs every batch would otherwise copy the whole file each time.
        for change in self.pending:
            self._settled_bytes += len(change.data) if isinstance(change, Write) else 0
        self._settled += self.pending
        self.pending = []
        if self._settled_bytes > len(self.base) + _SETTLED_BYTES_MAX:
            self.merge_synced()

    def fail_sync(self) -> None:
        """Lose the bytes written since the last sync: Linux reports the error once and calls the pages clean.

        The live view still shows them. The lengths stay pending: a later sync makes them durable, over zeros.
        """
        self.pending = [change.sized() if isinstance(change, Write) else change for change in self.pending]

    def merge_synced(self) -> None:
        """Apply the synced changes to `base`."""
        if self._settled:
            image = bytearray(self.base)
            for change in self._settled:
                change.apply(image)
            self.base = bytes(image)
            self._settled = []
            self._settled_bytes = 0

    def replace(self, content: bytes) -> None:
        """Set the live and the durable content."""
        self.base, self.pending, self._settled, self._settled_bytes, self._live = content, [], [], 0, None

    def copy(self) -> "FileImage":
        self.merge_synced()
        twin = FileImage(self.base)
        twin.pending = list(self.pending)
        twin._live = None if self._live is None else bytearray(self._live)
        return twin


class Link(NamedTuple):
    sequence: int
    name: str
    node: "Node"

    def apply(self, entries: "Entries") -> None:
        entries[self.name] = self.node


class Unlink(NamedTuple):
    sequence: int
    name: str

    def apply(self, entries: "Entries") -> None:
        entries.pop(self.name, None)


class Move(NamedTuple):
    """A rename within one folder: a single change, so that a crash never leaves both names or neither."""

    sequence: int
    name: str
    new_name: str
    node: "Node"

    def apply(self, entries: "Entries") -> None:
        entries.pop(self.name, None)
        entries[self.new_name] = self.node


NameChange: TypeAlias = Link | Unlink | Move


class FolderImage:
    """One folder: its live entries, its durable ones, and the pending changes of names."""

    __slots__ = ("base", "entries", "pending")

    def __init__(self, base: "Entries | None" = None) -> None:
        self.base: Entries = {} if base is None else base
        self.entries: Entries = dict(self.base)
        self.pending: list[NameChange] = []

    def change(self, change: NameChange) -> None:
        change.apply(self.entries)
        self.pending.append(change)

    def sync(self) -> None:
        if self.pending:
            self.base = dict(self.entries)
            self.pending = []

    def nodes(self) -> "dict[Node, str]":
        """Return every node that exists, or could exist after a crash, with one of its names, preferably a live
        one."""
        nodes = {node: name for name, node in self.base.items()}
        nodes.update((change.node, change.name) for change in self.pending if not isinstance(change, Unlink))
        nodes.update((node, name) for name, node in self.entries.items())
        return nodes


Node: TypeAlias = FileImage | FolderImage
Entries: TypeAlias = dict[str, Node]


def list_tree(root: FolderImage) -> list[tuple[str, Node]]:
    """Return every live path below `root` with its node, sorted by path."""
    paths: list[tuple[str, Node]] = []
    waiting = [("", root)]
    while waiting:
        folder_path, folder = waiting.pop()
        for name, node in folder.entries.items():
            path = f"{folder_path}/{name}"
            paths.append((path, node))
            if isinstance(node, FolderImage):
                waiting.append((path, node))
    paths.sort(key=lambda item: item[0])
    return paths


def fingerprint(root: FolderImage) -> int:
    """Return a number that is equal for trees with the same paths and bytes, in the same process.

    It relies on `hash` of bytes, which is keyed, fast and cached in the object: shared content is hashed once.
    """
    tree = list_tree(root)
    return hash(tuple((path, hash(node.content()) if isinstance(node, FileImage) else None) for path, node in tree))


def copy_tree(root: FolderImage) -> FolderImage:
    """Return an independent tree, with the same pending changes."""
    copies: dict[Node, Node] = {}

    def copy(node: Node) -> Node:
        if node not in copies:
            if isinstance(node, FileImage):
                copies[node] = node.copy()
            else:
                copies[node] = copy_folder(node)
        return copies[node]

    def copy_folder(folder: FolderImage) -> FolderImage:
        twin = FolderImage({name: copy(node) for name, node in folder.base.items()})
        twin.entries = {name: copy(node) for name, node in folder.entries.items()}
        twin.pending = [
            change if isinstance(change, Unlink) else change._replace(node=copy(change.node))
            for change in folder.pending
        ]
        return twin

    return copy_folder(root)
