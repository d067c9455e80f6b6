"""`python -m tests.attack.node serve …`: a node whose clock, disk and honesty a test can turn; the product has no such switch.

What the environment names is patched in before the node starts: `ATTACK_FOLDER` holds the control file and the notebook of what
was synced, `ATTACK_ASIDE` (on the file system of the data) the files that lost their names, `ATTACK_BUG` is one of `BUGS`.
Everything else is `braid` as it is.
"""

import errno
import mmap
import os
import struct
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

from tests.attack.unsynced import Notebook

from braidlog.cli import main
from braidlog.codec.batch.header import BatchHeader
from braidlog.model.clock import SystemClock
from braidlog.model.errors import StorageFault
from braidlog.partition.partition import Partition
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.storage.files import OsDisk, OsFile
from braidlog.storage.log.partition_log import Appended, PartitionLog
from braidlog.storage.state.transaction_index import TransactionIndex

FOLDER = "ATTACK_FOLDER"
ASIDE = "ATTACK_ASIDE"
BUG = "ATTACK_BUG"
LATE_SECONDS = 1.0
"""Between two syncs of a log, neither of which is waited for."""
REUSED_EVERY = 50


class Fault(IntEnum):
    NONE = 0
    EIO = 1
    """Of every sync."""
    FULL = 2
    """Of every write that makes a file longer."""


class Control:
    """A few bytes that the test and the node both have in memory."""

    _LAYOUT = struct.Struct("<qq")  # milliseconds that the clock is ahead, Fault

    def __init__(self, folder: Path) -> None:
        self.path = folder / "control"
        if not self.path.exists():
            self.path.write_bytes(bytes(self._LAYOUT.size))
        with self.path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), self._LAYOUT.size)

    @property
    def ahead_ms(self) -> int:
        return int(self._LAYOUT.unpack_from(self._memory)[0])

    @property
    def fault(self) -> Fault:
        return Fault(self._LAYOUT.unpack_from(self._memory)[1])

    def set(self, *, ahead_ms: int = 0, fault: Fault = Fault.NONE) -> None:
        self._LAYOUT.pack_into(self._memory, 0, ahead_ms, fault)


def replace(owner: type, name: str, replacement: Callable[..., Any]) -> None:
    assert hasattr(owner, name), f"{owner.__name__} has no {name} any more"
    setattr(owner, name, replacement)


def turn_clock(control: Control) -> None:
    now_ns = SystemClock.now_ns
    replace(SystemClock, "now_ns", lambda self: now_ns(self) + control.ahead_ms * 1_000_000)
    replace(SystemClock, "now_ms", lambda self: now_ns(self) // 1_000_000 + control.ahead_ms)


def _fault(number: int, doing: str, path: str) -> StorageFault:
    fault = StorageFault(f"cannot {doing}: {os.strerror(number)}", path)
    fault.__cause__ = OSError(number, os.strerror(number))
    return fault


def watch_files(control: Control, notebook: Notebook) -> None:
    """Faults on request; and what is synced is written down."""
    sync, append, write_at = OsFile.sync, OsFile.append, OsFile.write_at

    def watched_sync(self: OsFile) -> None:
        if control.fault is Fault.EIO:
            raise _fault(errno.EIO, "sync", self.path)
        status = os.fstat(self.fileno())
        sync(self)
        notebook.note("sync", status.st_ino, status.st_size)

    def full(self: OsFile, end: int) -> None:
        if control.fault is Fault.FULL and end > self.size():
            raise _fault(errno.ENOSPC, "write", self.path)

    def watched_append(self: OsFile, parts: Any, position: int) -> int:
        full(self, position + sum(map(len, parts)))
        return append(self, parts, position)

    def watched_write_at(self: OsFile, data: Any, position: int) -> None:
        full(self, position + len(data))
        write_at(self, data, position)

    replace(OsFile, "sync", watched_sync)
    replace(OsFile, "append", watched_append)
    replace(OsFile, "write_at", watched_write_at)


def watch_names(notebook: Notebook) -> None:
    """Of files."""
    create, open_file, rename, remove = OsDisk.create, OsDisk.open, OsDisk.rename, OsDisk.remove

    def watched_create(self: OsDisk, path: str) -> OsFile:
        file = create(self, path)
        notebook.note("new", os.fstat(file.fileno()).st_ino)
        notebook.note("made", path)
        return file

    def watched_open(self: OsDisk, path: str, *, writable: bool) -> OsFile:
        file = open_file(self, path, writable=writable)
        if writable:
            status = os.fstat(file.fileno())
            notebook.note("open", status.st_ino, status.st_size)
        return file

    def watched_rename(self: OsDisk, old: str, new: str) -> None:
        aside = notebook.keep(new)
        rename(self, old, new)
        notebook.note("moved", old, new, aside)

    def watched_remove(self: OsDisk, path: str) -> None:
        aside = notebook.keep(path)
        remove(self, path)
        notebook.note("gone", path, aside)

    replace(OsDisk, "create", watched_create)
    replace(OsDisk, "open", watched_open)
    replace(OsDisk, "rename", watched_rename)
    replace(OsDisk, "remove", watched_remove)


def watch_folders(notebook: Notebook) -> None:
    remove_folder, make_folder, sync_folder = OsDisk.remove_folder, OsDisk.make_folder, OsDisk.sync_folder

    def watched_remove_folder(self: OsDisk, path: str) -> None:
        remove_folder(self, path)
        notebook.note("gone", path, "-")

    def watched_make_folder(self: OsDisk, path: str) -> None:
        is_new = not os.path.isdir(path)
        make_folder(self, path)
        if is_new:
            notebook.note("made", path)

    def watched_sync_folder(self: OsDisk, path: str) -> None:
        lines = notebook.lines
        sync_folder(self, path)
        notebook.note("names", path, lines)

    replace(OsDisk, "remove_folder", watched_remove_folder)
    replace(OsDisk, "make_folder", watched_make_folder)
    replace(OsDisk, "sync_folder", watched_sync_folder)


# ── Bugs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def acknowledge_before_sync() -> None:
    late: set[Any] = set()

    def sync(runtime: EventLoopRuntime, log: Any) -> None:
        late.discard(log)
        runtime._group(log)

    async def durable(self: EventLoopRuntime, log: Any, next_offset: int) -> None:
        if log.durable_offset < next_offset and log not in late:
            late.add(log)
            self._loop.call_later(LATE_SECONDS, sync, self, log)

    replace(EventLoopRuntime, "durable", durable)


def skip_folder_sync() -> None:
    replace(OsDisk, "sync_folder", lambda self, path: None)


def reuse_offset() -> None:
    """Now and then a producer is told the offset of the record before its own."""
    append = PartitionLog.append
    count = 0

    def reusing(self: PartitionLog, data: Any, **options: Any) -> Appended:
        nonlocal count
        found = append(self, data, **options)
        count += 1
        if count % REUSED_EVERY or not found.base_offset:
            return found
        return found._replace(base_offset=found.base_offset - 1, last_offset=found.last_offset - 1)

    replace(PartitionLog, "append", reusing)


def forget_aborted_transaction() -> None:
    apply = TransactionIndex.apply

    def forgetting(self: TransactionIndex, header: BatchHeader, *, commit: bool | None) -> None:
        apply(self, header, commit=True if commit is False else commit)

    replace(TransactionIndex, "apply", forgetting)


def acknowledge_before_the_set() -> None:
    """As if nobody ever asked for more than the leader."""
    produce = Partition.produce

    def hasty(self: Partition, produced: Any, *, needs_all: bool, is_awaited: bool, reach: Any = None) -> Any:
        del needs_all, reach
        return produce(self, produced, needs_all=False, is_awaited=is_awaited)

    replace(Partition, "produce", hasty)


BUGS: dict[str, Callable[[], None]] = {
    "acknowledge before sync": acknowledge_before_sync,
    "acknowledge before the set": acknowledge_before_the_set,
    "skip the folder sync": skip_folder_sync,
    "reuse an offset": reuse_offset,
    "forget an aborted transaction": forget_aborted_transaction,
}


def prepare(folder: Path, bug: str) -> None:
    control = Control(folder)
    notebook = Notebook(folder / "notebook", Path(os.environ[ASIDE]))
    turn_clock(control)
    watch_files(control, notebook)
    watch_names(notebook)
    watch_folders(notebook)
    if bug:
        BUGS[bug]()


if __name__ == "__main__":
    prepare(Path(os.environ[FOLDER]), os.environ.get(BUG, ""))
    main(prog_name="braid")
