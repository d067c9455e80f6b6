"""Files of a table for pyiceberg, durable on a local disk when they are closed.

A closed file survives power loss, name and bytes, so that a commit may refer to it. Does not handle: file contents.
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
"""Timeouts in seconds, unless the store's properties set them."""


class TableIO(PyArrowFileIO):
    """An implementation of pyiceberg's `py-io-impl`."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Parse a location. Azure URIs begin with `container@account.host`, as other engines write them; Arrow's
        paths with the container."""
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
        """Return a folder's files with their modification times in ms; empty if it does not exist."""
        scheme, netloc, path = self.parse_location(folder, self.properties)
        entries = self.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, allow_not_found=True))
        return {entry.base_name: (entry.mtime_ns or 0) // 10**6 for entry in entries if entry.type is FileType.File}


def file_system(location: str, properties: Mapping[str, str]) -> tuple[FileSystem, str]:
    """Return Arrow's file system for a URI, and the path in it. Arrow reads missing credentials from the store's
    usual environment."""
    known = {**PATIENCE, **store_properties(properties)}
    files = TableIO(known)
    scheme, netloc, path = files.parse_location(location, known)
    return files.fs_by_scheme(scheme, netloc), path


def store_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Add a default S3 region: otherwise Arrow asks Amazon for the region of another store's bucket."""
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
    """Create folders durably: after a crash a file must not exist without its folder."""
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
