"""Pool open files, up to a limit.

The pool tracks files open for reading by path, and which partitions have a file open for writing. Invariant: a file
that leaves the pool stays open until its last reader releases it. The number of files for writing stays within the
limit, except for those in use.
"""

import threading
from collections import OrderedDict
from typing import Protocol

from braidlog.storage.files import Disk, File

OPEN_FILES_MAX = 512


class Holder(Protocol):
    """A partition that has a file open for writing."""

    @property
    def end_offset(self) -> int:
        """Used to detect activity: it grows with every append."""
        ...

    def maybe_close(self, *, settled_only: bool) -> bool:
        """Close the file and remove itself from the pool, unless it is in use.

        With `settled_only`, close only if no sync is needed.

        Never waits for a lock: the caller may hold another partition's.
        """
        ...

    def drop_reserve(self) -> None:
        """Truncate the file to its last record, without a sync."""
        ...


class FilePool:
    """Files for reading, by path, and the partitions with a file open for writing: at most `open_max` of each."""

    def __init__(self, disk: Disk, open_max: int = OPEN_FILES_MAX) -> None:
        self._disk = disk
        self._open_max = open_max
        self._files: OrderedDict[str, File] = OrderedDict()
        self._holders: OrderedDict[Holder, int] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str) -> File:
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = self._disk.open(path, writable=False)
                if len(self._files) > self._open_max:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return file

    def drop(self, path: str) -> None:
        """Remove a path that is about to change or to be removed."""
        with self._lock:
            self._files.pop(path, None)

    # -- files for writing -----------------------------------------------------------------------------------

    @property
    def writing(self) -> int:
        """The number of partitions with a file open for writing."""
        return len(self._holders)

    def enlist(self, holder: Holder) -> None:
        """Register a partition that opens a file for writing; close other files if there are too many."""
        with self._lock:
            self._holders[holder] = holder.end_offset
            self._holders.move_to_end(holder)
        self._shrink(self._open_max, holder)

    def dismiss(self, holder: Holder) -> None:
        """Unregister a partition that has closed its file."""
        with self._lock:
            self._holders.pop(holder, None)

    def make_room(self) -> None:
        """Close files early so that a later opening need not wait for another partition's sync.

        Called periodically on a thread.
        """
        self._shrink(self._open_max * 3 // 4, None)

    def drop_reserves(self) -> None:
        """Truncate every file that is open for writing to its last record. Closed files have no reserve."""
        with self._lock:
            holders = list(self._holders)
        for holder in holders:
            holder.drop_reserve()

    def _shrink(self, count: int, asking: Holder | None) -> None:
        """Close files down to `count`: first in bulk those that need no sync, then as few others as possible.

        If all files are in use, more than `count` stay open for a while.
        """
        for settled_only, enough in ((True, count * 7 // 8), (False, count)):
            if len(self._holders) <= count:
                return
            for holder in self._first_come(asking):
                holder.maybe_close(settled_only=settled_only)
                if len(self._holders) <= enough:
                    return

    def _first_come(self, asking: Holder | None) -> list[Holder]:
        """Return the order in which to close: idle partitions first, then those that grew since the last check."""
        with self._lock:
            others = [(holder, seen) for holder, seen in self._holders.items() if holder is not asking]
            idle = [holder for holder, seen in others if holder.end_offset == seen]
            grown = [holder for holder, seen in others if holder.end_offset != seen]
            for holder in grown:
                self._holders[holder] = holder.end_offset
                self._holders.move_to_end(holder)
            return idle + grown
