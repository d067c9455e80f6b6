"""Open files, at most so many of them.

Knows: which paths are open and which was used longest ago. Refuses to know: what is in them.
Invariant: a file leaves the pool without being closed under a reader; it closes when its last holder lets go.
"""

import threading
from collections import OrderedDict

from braidlog.storage.files import Disk, File

OPEN_FILES_MAX = 512


class FilePool:
    """Read-only files by path."""

    def __init__(self, disk: Disk, open_max: int = OPEN_FILES_MAX) -> None:
        self._disk = disk
        self._open_max = open_max
        self._files: OrderedDict[str, File] = OrderedDict()
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
