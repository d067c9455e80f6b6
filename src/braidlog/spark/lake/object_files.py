"""Files of a table in an object store: creates, removes, lists and reads them by URI.

A file exists, complete and durable, only after it was closed. Does not handle: file contents.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Buffer


def is_uri(path: str) -> bool:
    return "://" in path


def _file_system(path: str, properties: Mapping[str, str]) -> tuple[FileSystem, str]:
    from braidlog.tables.files import file_system  # noqa: PLC0415 - tables on a disk do without pyiceberg

    with _faults(path):
        return file_system(path, properties)


class ObjectFiles:
    """The files below one URI."""

    def __init__(self, location: str, properties: Mapping[str, str]) -> None:
        self._files, self._root = _file_system(location, properties)
        self._location = location

    def create(self, path: str) -> "Upload":
        with _faults(path):
            return Upload(path, self._files.open_output_stream(self._inside(path), compression=None))

    def remove(self, path: str) -> None:
        """Remove a file; it is not an error if the file does not exist, because its upload may not have completed."""
        with _faults(path), contextlib.suppress(FileNotFoundError):
            self._files.delete_file(self._inside(path))

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        with _faults(path):
            try:
                with self._files.open_input_file(self._inside(path)) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def walk(self) -> Iterator[str]:
        with _faults(self._location):
            entries = self._files.get_file_info(FileSelector(self._root, allow_not_found=True, recursive=True))
        for entry in entries:
            if entry.type is FileType.File:
                yield self._location + entry.path.removeprefix(self._root)

    def _inside(self, path: str) -> str:
        return self._root + path.removeprefix(self._location)


class Upload:
    """A file being written sequentially."""

    def __init__(self, path: str, stream: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        self.path = path
        self._stream = stream

    def append(self, parts: Sequence[Buffer], position: int) -> int:  # noqa: ARG002 - a file's form
        with _faults(self.path):
            return sum(self._stream.write(part) for part in parts)

    def sync(self) -> None:
        """Do nothing: closing makes the file durable."""

    def close(self) -> None:
        with _faults(self.path):
            self._stream.close()


def opened(path: str, properties: Mapping[str, str]) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return a source for reading Parquet: a path, or a file of a store."""
    if not is_uri(path):
        return path
    files, inside = _file_system(path, properties)
    with _faults(path):
        return files.open_input_file(inside)


@contextlib.contextmanager
def _faults(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StorageFault(f"the store refused: {error}", path) from error
