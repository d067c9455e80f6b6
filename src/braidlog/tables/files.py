"""Files of a table, as pyiceberg reads and writes them: on a local disk durable when they are closed.

Knows: pyiceberg's port for files. Refuses to know: what is in them.
Invariant: a file that was closed survives power loss, name and bytes: the commit that names it may come next.
"""

import io
import os
from collections.abc import Mapping
from typing import Any, Final

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

_LOCAL = "file"
_AZURE = ("abfs", "abfss", "wasb", "wasbs")
PATIENCE: Final = {"s3.connect-timeout": "10", "s3.request-timeout": "60"}
"""In seconds; unless the store's properties say otherwise."""


class TableIO(PyArrowFileIO):
    """See `py-io-impl` of pyiceberg."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Azure's URIs begin with `container@account.host`, as other engines write them; Arrow's paths with the container."""
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        if scheme in _AZURE and "@" in netloc:
            container = netloc.partition("@")[0]
            return scheme, container, container + path.removeprefix(netloc)
        return scheme, netloc, path

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


def file_system(location: str, properties: Mapping[str, str]) -> tuple[FileSystem, str]:
    """Arrow's file system for a URI, and the path in it. Credentials that the properties leave out, Arrow looks for where the
    store's own tools do."""
    known = {**PATIENCE, **store_properties(properties)}
    files = TableIO(known)
    scheme, netloc, path = files.parse_location(location, known)
    return files.fs_by_scheme(scheme, netloc), path


def store_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """With a region of S3: told, so that nobody asks Amazon in which of its regions a bucket of another store is."""
    said = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    is_elsewhere = (
        "s3.endpoint" in properties or "AWS_ENDPOINT_URL" in os.environ or "AWS_ENDPOINT_URL_S3" in os.environ
    )
    region = said or ("us-east-1" if is_elsewhere else None)
    return {**({} if region is None else {"s3.region": region}), **properties}


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
