"""Back-ups in an object store: `s3://bucket/prefix`, `gs://…`, `abfss://…`, with the layout that a folder has.

Knows: Arrow's file systems, as tables use them (`tables/files.py`). Refuses to know: what is kept.
Invariants: an object is there when its upload is complete, whole, and not before. One process at a time writes. A store has no
locks: whoever writes says so with an object of its own, `writing/<token>`, before it looks for those of others. Lists are of what
is there now, so of two who begin at once at least one sees the other, and gives way.

A process that was killed leaves its object. Whoever writes renews it, and stops by itself if that was not done for half of
`HELD_SECONDS`, whatever held it up; so one older than `HELD_SECONDS`, by the store's own clock, is nobody's, and is removed.
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
_HINT: Final = "a store's address and credentials: --store-file, or the variables that its own tools read"


def _since_boot() -> float:
    """Seconds; those in which the machine slept count."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ObjectPlace:
    """The objects below a URI."""

    def __init__(self, path: str, properties: Mapping[str, str], seconds: Callable[[], float] = _since_boot) -> None:
        self.path = path.rstrip("/")
        if not self.path.startswith(_SCHEMES):
            raise BrokerError(
                Reason.INVALID_SETTING, f"{path}: back-ups are kept in a folder, or in {', '.join(_SCHEMES)}"
            )
        try:
            self._files, self._root = file_system(self.path, properties)
        except (OSError, ValueError, ImportError, pa.ArrowException) as error:
            raise BrokerError(Reason.INVALID_SETTING, f"{self.path} cannot be opened: {error} ({_HINT})") from error
        self._seconds = seconds
        self._own = ""
        """The name of the object by which this one writes; none while it does not."""
        self._renewed = 0.0
        self._there: dict[str, int] | None = None
        """All names and sizes, while this one writes and nobody else does."""

    # -- what is there ---------------------------------------------------------------------------------------

    def sizes(self, folder: str) -> dict[str, int]:
        return {name: size for name, (size, _) in self._list(folder).items()}

    def _list(self, folder: str) -> dict[str, tuple[int, float]]:
        """Names, how many bytes each has, and when it was written, in seconds."""
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
            self._there = self.sizes("")  # one list instead of a question for each
        return self._there.get(name)

    def read(self, name: str) -> bytes:
        if self._own:
            self._hold()
        with self._explained("be read"):
            try:
                with self._files.open_input_stream(f"{self._root}/{name}", compression=None) as stream:
                    return bytes(stream.read())
            except FileNotFoundError as error:
                raise StorageFault("it is missing", f"{self.path}/{name}") from error

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
            ):  # it is nobody's soon, and what went wrong has been said
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
                f"{self.path}: the store does not list what was just written: back-ups need one that does",
            )
        now = others.pop(self._own)[1]
        for name, (_, written) in others.items():
            if now - written <= HELD_SECONDS:
                raise BrokerError(
                    Reason.FOLDER_IN_USE,
                    f"{self.path} is in use: another writes there ({name}, {now - written:.0f} s old). Try again later; "
                    f"one that was killed is forgotten after {HELD_SECONDS // 60} minutes",
                )
            self._delete(name)

    def _hold(self) -> None:
        """Before anything that relies on being alone."""
        assert self._own, "within `writing`"
        passed = self._seconds() - self._renewed
        if passed > HELD_SECONDS / 2:
            raise BrokerError(
                Reason.TIMED_OUT,
                f"{self.path}: held up for {passed:.0f} s, and others may write by now: run it again, what was copied is there",
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
            # All in one call, and no `with`, which would complete an upload that failed: it is whole, or not there.
            stream.write(data)
            stream.close()

    def settle(self, names: Iterable[str]) -> None:
        """They are, when the store has answered."""

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
        ):  # rights to some of a bucket's objects are none to the bucket
            return bool(self._files.get_file_info(self._root.partition("/")[0]).type is FileType.NotFound)
        return False

    def _no_bucket(self) -> BrokerError:
        bucket = self._root.partition("/")[0]
        return BrokerError(
            Reason.FOLDER_NOT_FOUND, f"{self.path}: the store has no bucket {bucket!r}; make it, or name another"
        )
