"""Files of a table, as pyiceberg reads and writes them: on a local disk durable when they are closed.

Knows: pyiceberg's port for files. Refuses to know: what is in them.
Invariant: a file that was closed survives power loss, name and bytes: the commit that names it may come next.
"""

import io
import os
from typing import Any

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

_LOCAL = "file"


class TableIO(PyArrowFileIO):
    """See `py-io-impl` of pyiceberg."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != _LOCAL:
            return super().new_output(location)
        return _LocalFile(location, path, self.fs_by_scheme(scheme, netloc))

    def names(self, folder: str) -> dict[str, int]:
        """The files of a folder, and when each was written, in ms; none if it is not there."""
        scheme, netloc, path = self.parse_location(folder, self.properties)
        found = self.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, allow_not_found=True))
        return {each.base_name: (each.mtime_ns or 0) // 10**6 for each in found if each.type is FileType.File}


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - pyiceberg's form
        _make_folders(os.path.dirname(self._path))
        return _DurableFile(self._path, "wb" if overwrite else "xb")


class _DurableFile(io.BufferedWriter):
    def __init__(self, path: str, mode: str) -> None:
        super().__init__(open(path, mode, buffering=0), 1 << 20)  # noqa: SIM115 - closed with this
        self._path = path

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
            super().close()
            _sync_folder(os.path.dirname(self._path))


def _make_folders(path: str) -> None:
    """Durably: a crash must not keep a file and lose the folder it is in."""
    if not os.path.isdir(path):
        _make_folders(os.path.dirname(path))
        os.makedirs(path, exist_ok=True)
        _sync_folder(os.path.dirname(path))


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
