"""Backups in an object store: `s3://bucket/prefix`, `gs://…`, `abfss://…`, with the layout of a folder.

Uses Arrow's file systems, as tables do (`tables/files.py`). An object appears complete, when its upload ends.

Only one process writes at a time. A store has no locks, so a writer first creates the object `writing/<token>`, then
lists those of other writers. Lists are consistent: of two concurrent writers at least one sees the other and gives up.
A killed process leaves its object. A writer renews its object, and stops if it could not renew it for half of
`HELD_SECONDS`. So an object older than `HELD_SECONDS`, by the store's clock, is abandoned and removed.
"""

import contextlib
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType

from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.tables.files import file_system

HELD_SECONDS: Final = 1800
RENEWED_SECONDS: Final = 120
_WRITING: Final = "writing"
_SCHEMES: Final = ("s3://", "gs://", "abfss://")
_HINT: Final = "pass the store's address and credentials in --store-file, or in the variables that its own tools use"


def _since_boot() -> float:
    """Return seconds since boot, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ObjectPlace:
    """Backup store in the objects below a URI."""

    def __init__(self, path: str, properties: Mapping[str, str], seconds: Callable[[], float] = _since_boot) -> None:
        self.path = path.rstrip("/")
        if not self.path.startswith(_SCHEMES):
            raise BrokerError(
                Reason.INVALID_SETTING, f"{path}: unsupported scheme; use a folder, or {', '.join(_SCHEMES)}"
            )
        try:
            self._files, self._root = file_system(self.path, properties)
        except (OSError, ValueError, ImportError, pa.ArrowException) as error:
            raise BrokerError(Reason.INVALID_SETTING, f"{self.path} cannot be opened: {error} ({_HINT})") from error
        self._seconds = seconds
        self._own = ""
        """Name of this writer's lock object; None while it does not write."""
        self._renewed = 0.0
        self._there: dict[str, int] | None = None
        """Names and sizes of all objects, valid while this process is the only writer."""

    # -- reading ---------------------------------------------------------------------------------------------

    def sizes(self, folder: str) -> dict[str, int]:
        return {name: size for name, (size, _) in self._list(folder).items()}

    def _list(self, folder: str) -> dict[str, tuple[int, float]]:
        """Return names with sizes and modification times in seconds."""
        with self._explained("be listed"):
            found = self._files.get_file_info(
                FileSelector(f"{self._root}/{folder}".rstrip("/"), allow_not_found=True, recursive=True)
            )
            if not found and self._has_no_bucket():
                raise self._no_bucket()
        return {
            each.path.removeprefix(f"{self._root}/"): (each.size, (each.mtime_ns or 0) / 1e9)
            for each in found
            if each.type is FileType.File
        }

    def size(self, name: str) -> int | None:
        self._hold()
        if self._there is None:
            self._there = self.sizes("")  # one list instead of a request per object
        return self._there.get(name)

    def read(self, name: str) -> bytes:
        if self._own:
            self._hold()
        with self._explained("be read"):
            try:
                with self._files.open_input_stream(f"{self._root}/{name}", compression=None) as stream:
                    return bytes(stream.read())
            except FileNotFoundError as error:
                raise StorageFault("object not found", f"{self.path}/{name}") from error

    # -- writing ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        self._own = f"{_WRITING}/{uuid.uuid4().hex}"
        try:
            self._renew()
            self._give_way()
            yield
        finally:
            own, self._own, self._there = self._own, "", None
            with contextlib.suppress(
                OSError, pa.ArrowException
            ):  # it expires soon, and the first error has been raised
                self._files.delete_file(f"{self._root}/{own}")

    def _renew(self) -> None:
        now = self._seconds()
        self._put(self._own, f"{socket.gethostname()}\n".encode())
        self._renewed = now

    def _give_way(self) -> None:
        others = self._list(_WRITING)
        if self._own not in others:
            raise BrokerError(
                Reason.UNAVAILABLE,
                f"{self.path}: the store's lists are not consistent: backups need a store that lists objects immediately",
            )
        now = others.pop(self._own)[1]
        for name, (_, written) in others.items():
            if now - written <= HELD_SECONDS:
                raise BrokerError(
                    Reason.FOLDER_IN_USE,
                    f"{self.path} is in use by another process ({name}, {now - written:.0f} s old). Retry later; "
                    f"the lock of a killed process expires after {HELD_SECONDS // 60} minutes",
                )
            self._delete(name)

    def _hold(self) -> None:
        """Check and renew the lock, before a change that needs exclusive access."""
        assert self._own, "within `writing`"
        passed = self._seconds() - self._renewed
        if passed > HELD_SECONDS / 2:
            raise BrokerError(
                Reason.TIMED_OUT,
                f"{self.path}: lock expired: not renewed for {passed:.0f} s. Run the command again; copied data is reused",
            )
        if passed > RENEWED_SECONDS:
            self._renew()

    def write(self, name: str, data: bytes) -> None:
        self._hold()
        self._put(name, data)
        if self._there is not None:
            self._there[name] = len(data)

    def _put(self, name: str, data: bytes) -> None:
        with self._explained("be written"):
            stream = self._files.open_output_stream(f"{self._root}/{name}", compression=None)
            # One call, and no `with`, which would complete a failed upload: the object appears complete or not at all.
            stream.write(data)
            stream.close()

    def settle(self, names: Iterable[str]) -> None:
        """Do nothing: objects are durable when the store has answered."""

    def remove(self, name: str) -> None:
        self._hold()
        self._delete(name)
        if self._there is not None:
            self._there.pop(name, None)

    def _delete(self, name: str) -> None:
        with self._explained("be written"), contextlib.suppress(FileNotFoundError):
            self._files.delete_file(f"{self._root}/{name}")

    # -- errors ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, pa.ArrowException) as error:
            if self._has_no_bucket():
                raise self._no_bucket() from error
            raise BrokerError(
                Reason.UNAVAILABLE,
                f"{self.path} cannot {what}: {error} ({_HINT})",
            ) from error

    def _has_no_bucket(self) -> bool:
        with contextlib.suppress(
            OSError, pa.ArrowException
        ):  # access to objects of a bucket does not imply access to the bucket
            return bool(self._files.get_file_info(self._root.partition("/")[0]).type is FileType.NotFound)
        return False

    def _no_bucket(self) -> BrokerError:
        bucket = self._root.partition("/")[0]
        return BrokerError(
            Reason.FOLDER_NOT_FOUND, f"{self.path}: bucket {bucket!r} does not exist; create it, or name another"
        )
