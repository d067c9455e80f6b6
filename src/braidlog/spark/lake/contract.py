"""What every kind of table does for a sink and for upkeep, and how a batch becomes part of one exactly once.

Knows: the questions, and when a commit is tried again. Refuses to know: any table format.
Invariant of every table: `commit` of one (sink, batch) changes the table once, however often, from wherever and with whichever
files it is asked for; what is refused, changes nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from braidlog.model.clock import Clock, SystemClock
from braidlog.spark.lake.editions import Edition
from braidlog.spark.lake.errors import LakeError, NoTableError
from braidlog.spark.lake.object_files import ObjectFiles, is_uri
from braidlog.spark.lake.places import whole
from braidlog.spark.lake.written import Change, DataFile
from braidlog.storage.files import Disk, OsDisk, join, parent

COMMIT_ATTEMPTS_MAX = 20
"""How often a commit that lost against another is decided anew."""
Loaded = Any
"""The table as its library has read it, which neither deltalake nor pyiceberg gives a type that mypy sees."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Rewritten:
    """What a compaction did."""

    files_removed: int = 0
    files_added: int = 0
    bytes_removed: int = 0
    bytes_added: int = 0


@dataclass(frozen=True)
class StoredFile:
    """A file of a table, by its whole path, and the values of the partition columns that it does not hold itself."""

    path: str
    partition: dict[str, Any]


@dataclass(frozen=True)
class State:
    """A table as of one commit."""

    version: int
    schema: pa.Schema
    files: tuple[StoredFile, ...]


class Table(ABC):
    """A kind of table says how it is loaded and changed; when, is said here."""

    keeps_partition_columns: bool
    """Whether the files have the partition columns too, or the folders' names alone."""
    conflict: type[Exception]
    """What the library raises if somebody else committed first."""

    def __init__(self, title: str, disk: Disk | None, clock: Clock | None) -> None:
        self.title = title
        """What errors call the table."""
        self.properties: dict[str, str] = {}
        """Of the store in which its files are, if they are in one."""
        self.edition: Edition | None = None
        """Whose rows it is to have; None: those that are there, and more."""
        self._disk = disk or OsDisk()
        self._clock = clock or SystemClock()

    # -- what a sink and upkeep ask --------------------------------------------------------------------------

    @property
    @abstractmethod
    def location(self) -> str:
        """The folder in which tasks put their files."""

    @abstractmethod
    def prepare(self, schema: pa.Schema, partition_by: Sequence[str], *, merge_schema: bool) -> pa.Schema:
        """Make the table if it is not there; refuse what would not fit, before anything is written. Give the schema that the
        files are to have."""

    def renew(self) -> None:
        """Rows of an edition before this one are no part of the table any more. Whoever reads it sees all of them, or none."""
        if self.edition is not None:
            wanted = self.edition.emptied

            def once(table: Loaded) -> None:
                if wanted.replaces(self._edition_of(table), self.title):
                    self._put_aside(table, wanted)

            with suppress(NoTableError):
                self._until_first(once)

    @abstractmethod
    def forget_earlier(self) -> None:
        """Remove what is left of editions before this one, as far as that is not `vacuum`'s."""

    @abstractmethod
    def vacuum(self, age_seconds: float) -> list[str]:
        """Remove files that are older than this and no part of the table; give their names."""

    def commit(self, change: Change) -> bool:
        """Make the files part of the table; False if this sink's batch already was, and then they are removed."""

        def once(table: Loaded) -> bool:
            self._check_edition(table)
            last, is_same_run = self._progress(table, change)
            if not change.is_after(last, is_same_run=is_same_run):
                self._discard(table, change.files)
                return False
            self._add_files(table, change)
            self._sync(table)
            return True

        return self._until_first(once)

    def upsert(self, change: Change, rows: pa.Table, keys: Sequence[str]) -> bool:
        """Replace the rows that have these keys, add the others; False if this sink's batch was there already. The change has no
        files: the table's library writes them, and here they are synced."""

        def once(table: Loaded) -> bool:
            self._check_edition(table)
            last, is_same_run = self._progress(table, change)
            if not change.is_after(last, is_same_run=is_same_run):
                return False
            before = set(self._paths(table))
            self._upsert(table, change, rows, keys)
            table = self._load()
            new = {path for path in self._paths(table) if path not in before and not is_uri(path)}
            for path in new:
                self._sync_file(path)
            for folder in {parent(path) for path in new}:
                self._disk.sync_folder(folder)
            self._sync(table)
            return True

        return self._until_first(once)

    @abstractmethod
    def state(self, version: int | None) -> State:
        """The table as of a version, or now; `LakeError` if its rows are deleted or named in a way that is not read here."""

    @abstractmethod
    def added(self, after: int, upto: int) -> list[StoredFile]:
        """The files that the commits of (after, upto] have added; `LakeError` if one of them changed or deleted rows. A
        compaction does neither."""

    def compact(self, target_file_bytes: int) -> Rewritten:
        """Put small files together. Rows stay as they are; a writer may go on meanwhile."""

        def once(table: Loaded) -> Rewritten:
            done = self._compact(table, target_file_bytes)
            if done.files_removed:
                self._sync(table)
            return done

        return self._until_first(once)

    def discard(self, files: Iterable[DataFile]) -> None:
        """Remove what an attempt wrote, but nothing that the table names: an abort may follow a commit that succeeded."""
        self._discard(self._load(), files)

    def paths(self) -> list[str]:
        """The files that are the table now, as whole paths: all of every change, or nothing of it."""
        return self._paths(self._load())

    # -- what a kind of table answers ------------------------------------------------------------------------

    @abstractmethod
    def _load(self) -> Loaded:
        """The table as it is now, or NoTableError."""

    @abstractmethod
    def _paths(self, table: Loaded) -> list[str]:
        """The files of the loaded table, as whole paths."""

    @abstractmethod
    def _edition_of(self, table: Loaded) -> Edition | None:
        """Whose rows the loaded table has."""

    @abstractmethod
    def _put_aside(self, table: Loaded, wanted: Edition) -> None:
        """In one commit: no rows, and of this edition; raises `conflict` as `_add_files` does."""

    @abstractmethod
    def _progress(self, table: Loaded, change: Change) -> tuple[int | None, bool]:
        """The last batch that the table has of the change's sink, and whether the same run numbered it."""

    @abstractmethod
    def _add_files(self, table: Loaded, change: Change) -> None:
        """Files and the batch's number in one commit; raises `conflict` if the table was changed since it was loaded."""

    @abstractmethod
    def _upsert(self, table: Loaded, change: Change, rows: pa.Table, keys: Sequence[str]) -> None:
        """Rows by key and the batch's number in one commit; raises `conflict` as `_add_files` does."""

    @abstractmethod
    def _compact(self, table: Loaded, target_file_bytes: int) -> Rewritten: ...

    @abstractmethod
    def _sync(self, table: Loaded) -> None:
        """Make the last commit durable: neither library does."""

    # -- what all share --------------------------------------------------------------------------------------

    def _check_edition(self, table: Loaded) -> None:
        """A writer that went on while the table was made anew has rows of another edition."""
        if self.edition is not None and self.edition.replaces(self._edition_of(table), self.title):
            raise LakeError(f"{self.title} has not been made anew yet")

    def _until_first(self, act: Callable[[Loaded], Result]) -> Result:
        """Act on the newest state; who lost against another commit looks at the table again, and decides anew."""
        for _ in range(COMMIT_ATTEMPTS_MAX):
            try:
                return act(self._load())
            except self.conflict:
                continue
        raise LakeError(
            f"{self.title}: {COMMIT_ATTEMPTS_MAX} commits lost against other writers; run fewer writers at once"
        )

    def _discard(self, table: Loaded, files: Iterable[DataFile]) -> None:
        named = set(self._paths(table))
        self._remove(file for file in files if whole(join(self.location, file.path)) not in named)

    def _remove(self, files: Iterable[DataFile]) -> None:
        for file in files:
            self._remove_file(join(self.location, file.path))

    def _remove_file(self, path: str) -> None:
        if is_uri(path):
            ObjectFiles(path, self.properties).remove(path)
        elif self._disk.exists(path):
            self._disk.remove(path)

    def _sync_file(self, path: str) -> None:
        if self._disk.exists(path):
            with closing(self._disk.open(path, writable=False)) as file:
                file.sync()
