"""Open files, at most so many of them.

Knows: which paths are open for reading, who holds a file open for writing, and who of them came first. Refuses to know: what is
in the files, and how a holder makes sure that nothing is lost when it lets go.
Invariant: a file leaves the pool without being closed under a reader; it closes when its last holder lets go. Files for writing
are as many as allowed, but for those that are in use at this moment.
"""

import threading
from collections import OrderedDict
from typing import Protocol

from braidlog.storage.files import Disk, File

OPEN_FILES_MAX = 512


class Holder(Protocol):
    """Who holds a file open for writing: a partition."""

    @property
    def end_offset(self) -> int:
        """Grows with use."""
        ...

    def maybe_close(self, *, settled_only: bool) -> bool:
        """Close the file and say so to the pool, unless it is in use; with `settled_only`, only one that needs no sync.

        Never waits for a lock: whoever asks may hold another partition's.
        """
        ...

    def drop_reserve(self) -> None:
        """End the file where its last record ends; without a sync."""
        ...


class FilePool:
    """Files for reading, by path, and the partitions that have one open for writing: `open_max` of each."""

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
        """Forget a path that is about to change or vanish."""
        with self._lock:
            self._files.pop(path, None)

    # -- files for writing -----------------------------------------------------------------------------------

    @property
    def writing(self) -> int:
        """How many hold a file open for writing."""
        return len(self._holders)

    def enlist(self, holder: Holder) -> None:
        """Somebody is about to open a file for writing: others let go of theirs, if there are too many."""
        with self._lock:
            self._holders[holder] = holder.end_offset
            self._holders.move_to_end(holder)
        self._shrink(self._open_max, holder)

    def dismiss(self, holder: Holder) -> None:
        """It has let go for good."""
        with self._lock:
            self._holders.pop(holder, None)

    def make_room(self) -> None:
        """On a thread, now and then: close early, so that whoever opens a file next need not sync another's first."""
        self._shrink(self._open_max * 3 // 4, None)

    def drop_reserves(self) -> None:
        """Every file that is open for writing ends where its last record ends; the others do anyway."""
        with self._lock:
            holders = list(self._holders)
        for holder in holders:
            holder.drop_reserve()

    def _shrink(self, count: int, asking: Holder | None) -> None:
        """Many at once of those that need no sync, then of the others as few as may be.

        If all are in use there are more than allowed for a while.
        """
        for settled_only, enough in ((True, count * 7 // 8), (False, count)):
            if len(self._holders) <= count:
                return
            for holder in self._first_come(asking):
                holder.maybe_close(settled_only=settled_only)
                if len(self._holders) <= enough:
                    return

    def _first_come(self, asking: Holder | None) -> list[Holder]:
        """Whom to ask, in this order. Who has grown since it came or was last looked at goes behind the others, once."""
        with self._lock:
            others = [(holder, seen) for holder, seen in self._holders.items() if holder is not asking]
            idle = [holder for holder, seen in others if holder.end_offset == seen]
            grown = [holder for holder, seen in others if holder.end_offset != seen]
            for holder in grown:
                self._holders[holder] = holder.end_offset
                self._holders.move_to_end(holder)
            return idle + grown
