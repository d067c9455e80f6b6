"""Files of a table in an object store: written, removed, listed and read by their URIs.

Knows: Arrow's file systems, and the properties by which pyiceberg finds them. Refuses to know: what is in the files.
Invariant: a file that was closed is there, whole and durable; before that there is none.
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
    """Those below one URI."""

    def __init__(self, location: str, properties: Mapping[str, str]) -> None:
        self._files, self._root = _file_system(location, properties)
        self._location = location

    def create(self, path: str) -> "Upload":
        with _faults(path):
            return Upload(path, self._files.open_output_stream(self._inside(path), compression=None))

    def remove(self, path: str) -> None:
        """One that is not there is fine: it may never have been completed."""
        with _faults(path), contextlib.suppress(FileNotFoundError):
            self._files.delete_file(self._inside(path))

    def read(self, path: str) -> bytes | None:
        """All of it; None if there is none."""
        with _faults(path):
            try:
                with self._files.open_input_file(self._inside(path)) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def walk(self) -> Iterator[str]:
        with _faults(self._location):
            found = self._files.get_file_info(FileSelector(self._root, allow_not_found=True, recursive=True))
        for each in found:
            if each.type is FileType.File:
                yield self._location + each.path.removeprefix(self._root)

    def _inside(self, path: str) -> str:
        return self._root + path.removeprefix(self._location)


class Upload:
    """A file being written, from its start to its end."""

    def __init__(self, path: str, stream: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        self.path = path
        self._stream = stream

    def append(self, parts: Sequence[Buffer], position: int) -> int:  # noqa: ARG002 - a file's form
        with _faults(self.path):
            return sum(self._stream.write(part) for part in parts)

    def sync(self) -> None:
        """It is when it is closed."""

    def close(self) -> None:
        with _faults(self.path):
            self._stream.close()


def opened(path: str, properties: Mapping[str, str]) -> Any:  # noqa: ANN401 - pyarrow has no types
    """What Parquet is read from: a path, or a file of a store."""
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
