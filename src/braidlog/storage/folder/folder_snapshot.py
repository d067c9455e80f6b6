"""Take a snapshot of a data folder, from which a backup is copied.

A snapshot equals what `kill -9` at that time would have left, so everything that opens after a crash opens from a
snapshot. No append may run while it is taken: a node takes it in one turn of the event loop. Other threads may still
write marks and checkpoints, retain and compact; a folder that they change during the scan is scanned again.

Nothing is copied here. A file that only grows keeps a second name (a hard link) until the snapshot is dropped. Its
size and its first bytes are recorded, because the mark in them is overwritten. Files that are overwritten as a whole
(two-copy files) are recorded completely.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.files import Disk, FileStatus, file_status, join, link, remove_tree
from braidlog.storage.open_files import FilePool
from braidlog.storage.segment.segment_files import BASE_DIGITS, DATA_START, INDEX, LOG, STATE, SWAP
from braidlog.storage.two_copy_file import unpack_copy

CUT: Final = "cut"
LISTING: Final = "listing"
"""The name of the list of files, in the snapshot's folder."""
ATTEMPTS_MAX: Final = 100
_SLOTS = (".a", ".b")
_GROWING = (LOG, ".wal")
_WRITTEN_ONCE = (SWAP, INDEX, STATE, ".snapshot")
_TOP = ("folder.a", "folder.b", "epochs.a", "epochs.b")
_TOPICS = "topics"
_COPY = "copy"
_SETTLED_MS: Final = 2_000
"""The kernel updates file times with the resolution of its clock tick only."""


class CutFile(msgspec.Struct, frozen=True):
    """A file of a data folder in the snapshot: the bytes `head`, then the bytes up to `size` of the file `kept`."""

    path: str
    size: int
    modified_ns: int
    head: bytes = b""
    kept: str = ""
    """Empty if `head` is the whole file."""
    is_final: bool = False
    """No process appends to it any longer."""


class _Changed(Exception):  # noqa: N818 - a finding
    """The file or folder changed during the scan."""


class _Seen(NamedTuple):
    """A folder that was scanned before the snapshot, with the status of it and its files at that time."""

    looks: dict[str, FileStatus | None]
    files: list[CutFile]


class Cutting:
    """Takes one snapshot of the folder at `path` into its subfolder `cut`, which exists and is empty.

    `pool` has the open files of its logs.
    """

    def __init__(self, disk: Disk, path: str, pool: FilePool) -> None:
        self._disk = disk
        self._path = path
        self._pool = pool
        self._links = 0
        self._seen: dict[str, _Seen] = {}
        self._trusted_before_ns = 0
        self.files: list[CutFile] = []

    def prepare(self, now_ms: int) -> None:
        """Scan the topics before the snapshot, while appends continue: unchanged folders need no second scan."""
        self.take_topics()
        self.files = []
        self._trusted_before_ns = (now_ms - _SETTLED_MS) * 1_000_000

    def take_topics(self) -> None:
        """Record the folder's identity and every topic. The feed topic of the keys comes before the keys themselves."""
        self._pool.drop_reserves()  # otherwise a later append would be within the recorded size of the file
        self.files += self._settled("", lambda names: [name for name in names if name in _TOP])
        for number in self._numbered(_TOPICS, 8):
            topic = join(_TOPICS, number)
            found = [*self._settled(topic, lambda names: [name for name in names if name.endswith(_SLOTS)])]
            for partition in [*self._numbered(topic, 4), _COPY]:
                found += self._settled(join(topic, partition), _files_of)
            # Otherwise the topic was deleted during the scan, and its metadata agrees
            if self._disk.is_folder(join(self._path, topic)):
                self.files += found

    def take_keys(self, folder: str) -> None:
        """Record the files of the key-value store; nothing may write to its log during this."""
        self.files += self._settled(folder, _files_of)

    def _numbered(self, folder: str, digits: int) -> list[str]:
        path = join(self._path, folder)
        names = self._disk.names(path) if self._disk.is_folder(path) else []
        return [name for name in names if len(name) == digits and name.isascii() and name.isdigit()]

    def _settled(self, folder: str, choose: Callable[[Sequence[str]], list[str]]) -> list[CutFile]:
        """Return the files of a folder at one point in time; empty if the folder does not exist."""
        path = join(self._path, folder)
        seen = self._seen.get(folder)
        if seen is not None and self._is_untouched(seen):
            return seen.files
        for _ in range(ATTEMPTS_MAX):
            if not self._disk.is_folder(path):
                return []
            looks = {path: file_status(path)}
            names = self._disk.names(path)
            try:
                found = self._files(folder, choose(names), looks)
                if self._disk.names(path) == names:
                    self._seen[folder] = _Seen(looks, found)
                    return found
            except _Changed:
                continue
        raise BrokerError(Reason.TIMED_OUT, f"{path} keeps changing while a cut is taken; try again")

    def _is_untouched(self, seen: _Seen) -> bool:
        """Return whether a folder is unchanged since its scan.

        A file changed shortly before the scan counts as changed: a later change may have the same time.
        """
        return all(
            was is not None and was.modified_ns < self._trusted_before_ns and file_status(path) == was
            for path, was in seen.looks.items()
        )

    def _files(self, folder: str, names: Sequence[str], looks: dict[str, FileStatus | None]) -> list[CutFile]:
        before = {name: file_status(join(self._path, folder, name)) for name in names}
        looks.update({join(self._path, folder, name): was for name, was in before.items()})
        growing = {_last(names, suffix) for suffix in _GROWING}
        found = [self._file(join(folder, name), was, is_final=name not in growing) for name, was in before.items()]
        for name, was in before.items():
            now = file_status(join(self._path, folder, name))
            # A log file may have got a new mark: its head was read until two reads agreed.
            if now is None or was is None or now[:2] != was[:2] or (now != was and not name.endswith(_GROWING)):
                raise _Changed
        return found

    def _file(self, path: str, was: FileStatus | None, *, is_final: bool) -> CutFile:
        if was is None:
            raise _Changed
        place = join(self._path, path)
        is_log = path.endswith(_GROWING)
        head = b""
        if not is_log and not path.endswith(_WRITTEN_ONCE):
            head = self._read(place, was.size)
            if path.endswith(_SLOTS) and head and not _holds(head) and file_status(place) != was:
                raise _Changed
            return CutFile(path, len(head), was.modified_ns, head)
        if is_log and not is_final:
            head = self._read(place, DATA_START)
            if head != self._read(place, DATA_START):
                raise _Changed
        self._links += 1
        kept = f"{self._links:08d}"
        if not link(place, join(self._path, CUT, kept)):
            raise _Changed
        return CutFile(path, was.size, was.modified_ns, head, kept, is_final)

    def _read(self, place: str, size: int) -> bytes:
        try:
            file = self._disk.open(place, writable=False)
        except StorageFault as fault:
            if file_status(place) is None:
                raise _Changed from fault
            raise
        try:
            return file.read_at(size, 0)
        finally:
            file.close()


def _files_of(names: Sequence[str]) -> list[str]:
    """Return the files that define the content of a log.

    Excludes the index of the segment that still grows: it can be rebuilt from the segment.
    """
    last = _last(names, LOG)
    hint = last.removesuffix(LOG) + INDEX if last else ""
    kinds = (*_GROWING, *_WRITTEN_ONCE)
    return [
        name
        for name in names
        if name != hint and (name.endswith(_SLOTS) or (name.endswith(kinds) and _is_numbered(name)))
    ]


def _is_numbered(name: str) -> bool:
    stem = name.partition(".")[0]
    return len(stem) == BASE_DIGITS and stem.isascii() and stem.isdigit() and name.count(".") == 1


def _last(names: Sequence[str], suffix: str) -> str:
    return max((name for name in names if name.endswith(suffix)), default="")


def _holds(data: bytes) -> bool:
    try:
        unpack_copy(data[:8], "", data)
    except ValueError:
        return False
    return True


def make_room(disk: Disk, path: str) -> None:
    """Create an empty folder for a snapshot; drops an earlier one."""
    drop_snapshot(disk, path)
    disk.make_folder(join(path, CUT))


def write_listing(disk: Disk, path: str, files: list[CutFile]) -> str:
    """Write the list of files, which a backup reads first; return the snapshot's folder."""
    file = disk.create(join(path, CUT, LISTING))
    try:
        file.write_at(msgspec.msgpack.encode(files), 0)
    finally:
        file.close()
    return join(path, CUT)


def drop_snapshot(disk: Disk, path: str) -> None:
    """Remove a snapshot and its hard links."""
    if disk.is_folder(join(path, CUT)):
        remove_tree(disk, join(path, CUT))
