"""Power loss without a disk of one's own: what a node did not sync is taken from it after it was killed.

A node in test writes down which names it made, renamed and removed, how long each file was when it was synced, and which folders
it synced (`Notebook`). After a kill `lose_unsynced` undoes every name whose folder was not synced since, and cuts every file to
the length that was synced: POSIX promises no more. ext4 happens to keep more than that: a sync of any file there makes all names
durable, so that only this finds a folder that is not synced.

One line for each event, tabs between its words:
    new   inode            a file was created
    open  inode size       a file was opened for writing, with this size
    sync  inode size       so much of it is durable
    made  path             a file or a folder
    moved old new aside    `aside` is a link to what stood at `new`, - if nothing did, ? if it could not be kept
    gone  path aside       `aside` is a link to the file, - for a folder, ? if it could not be kept
    names folder count     the names of this folder are durable, as the first `count` lines left them
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

NOT_KEPT = "?"


class Notebook:
    """Written by the node. Not synced itself: it outlives a process that is killed."""

    def __init__(self, path: Path, aside: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._aside = aside
        self._kept = 0
        self._aside.mkdir(exist_ok=True)  # now: when it is needed, the disk may be full
        self.lines = path.read_bytes().count(b"\n")

    def note(self, *words: object) -> None:
        line = "\t".join(map(str, words)) + "\n"
        with self._lock:
            os.write(self._descriptor, line.encode())
            self.lines += 1

    def keep(self, path: str) -> str:
        """A link to a file that is about to lose its name; where there is no room for one, the name is lost for good."""
        if not os.path.isfile(path):
            return "-"
        with self._lock:
            self._kept += 1
            kept = self._aside / f"{os.getpid()}-{self._kept}"
        try:
            os.link(path, kept)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return NOT_KEPT
        return str(kept)


def lose_unsynced(notebook: Path, aside: Path, folder: Path) -> int:
    """Take from `folder` what was not durable; return how many names and ends of files that were."""
    lines = (
        [line.split("\t") for line in notebook.read_text(encoding="utf-8").splitlines()] if notebook.exists() else []
    )
    lost = _undo_names(lines) + _cut_files(lines, folder)
    notebook.unlink(missing_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    return lost


def _undo_names(lines: list[list[str]]) -> int:
    durable: dict[str, int] = {}
    """Folder → so many of the first lines."""
    undone = 0
    for number in reversed(range(len(lines))):
        kind, *words = lines[number]
        if kind == "names":
            durable[words[0]] = max(durable.get(words[0], 0), int(words[1]))
        elif kind in UNDO and number >= durable.get(os.path.dirname(words[1 if kind == "moved" else 0]), 0):
            undone += UNDO[kind](*words)
    return undone


def _unmake(path: str) -> bool:
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)
    else:
        return False
    return True


def _move_back(old: str, new: str, aside: str) -> bool:
    if aside == NOT_KEPT or not os.path.exists(new):
        return False
    os.rename(new, old)
    if aside != "-":
        os.link(aside, new)
    return True


def _bring_back(path: str, aside: str) -> bool:
    if aside == NOT_KEPT or os.path.exists(path) or not os.path.isdir(os.path.dirname(path)):
        return False
    os.mkdir(path) if aside == "-" else os.link(aside, path)
    return True


UNDO: dict[str, Callable[..., bool]] = {"made": _unmake, "moved": _move_back, "gone": _bring_back}


def _cut_files(lines: list[list[str]], folder: Path) -> int:
    sizes: dict[int, int] = {}
    for kind, *words in lines:
        if kind == "new":
            sizes[int(words[0])] = 0
        elif kind == "open":  # again, perhaps: nothing becomes durable by being opened
            sizes.setdefault(int(words[0]), int(words[1]))
        elif kind == "sync":
            sizes[int(words[0])] = int(words[1])
    cut = 0
    for path in folder.rglob("*"):
        status = path.stat()
        if path.is_file() and status.st_size > sizes.get(status.st_ino, status.st_size):
            os.truncate(path, sizes[status.st_ino])
            cut += 1
    return cut
