"""The base of all kinds of tables for the sink and for upkeep: how a batch is committed exactly once.

Does not handle: any table format. For every kind of table, `commit` of one (sink, batch) changes the table once,
regardless of repetitions, of the process, and of the files. A refused commit changes nothing.
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
"""How often a commit that lost a conflict is retried."""
Loaded = Any
"""A table as loaded by its library; neither deltalake nor pyiceberg has a type that mypy sees."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Rewritten:
    """The result of a compaction."""

    files_removed: int = 0
    files_added: int = 0
    bytes_removed: int = 0
    bytes_added: int = 0


@dataclass(frozen=True)
class StoredFile:
    """A file of a table, by absolute path, and the values of partition columns that the file does not contain."""

    path: str
    partition: dict[str, Any]


@dataclass(frozen=True)
class State:
    """A table as of one commit."""

    version: int
    schema: pa.Schema
    files: tuple[StoredFile, ...]


class Table(ABC):
    """A kind of table implements loading and changing; this class decides when."""

    keeps_partition_columns: bool
    """Whether files contain the partition columns, or only folder names do."""
    conflict: type[Exception]
    """The library's exception for a concurrent commit."""

    def __init__(self, title: str, disk: Disk | None, clock: Clock | None) -> None:
        self.title = title
        """The table's name in errors."""
        self.properties: dict[str, str] = {}
        """Properties of the object store of its files, if they are in one."""
        self.edition: Edition | None = None
        """The edition whose rows the table must have; None: append to the existing rows."""
        self._disk = disk or OsDisk()
        self._clock = clock or SystemClock()

    # -- called by the sink and by upkeep --------------------------------------------------------------------

    @property
    @abstractmethod
    def location(self) -> str:
        """Return the folder for files of tasks."""

    @abstractmethod
    def prepare(self, schema: pa.Schema, partition_by: Sequence[str], *, merge_schema: bool) -> pa.Schema:
        """Create the table if it does not exist; refuse an incompatible schema before anything is written. Return the
        schema for files."""

    def renew(self) -> None:
        """Remove the rows of an earlier edition from the table. Readers see all of them or none."""
        if self.edition is not None:
            emptied = self.edition.emptied

            def once(table: Loaded) -> None:
                if emptied.replaces(self._edition_of(table), self.title):
                    self._put_aside(table, emptied)

            with suppress(NoTableError):
                self._until_first(once)

    @abstractmethod
    def forget_earlier(self) -> None:
        """Remove the remains of earlier editions that `vacuum` does not remove."""

    @abstractmethod
    def vacuum(self, age_seconds: float) -> list[str]:
        """Remove files older than this that are not part of the table; return their names."""

    def commit(self, change: Change) -> bool:
        """Add the files to the table; if it already has this sink's batch, remove the files and return False."""

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
        """Replace the rows with these keys and add the others; return False if the table already has this sink's
        batch. The change has no files: the table's library writes them, and this method syncs them."""

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
        """Return the table as of a version, or now; `LakeError` if it has deletes or column mappings that are not
        supported."""

    @abstractmethod
    def added(self, after: int, upto: int) -> list[StoredFile]:
        """Return the files that the commits in (after, upto] added; `LakeError` if a commit changed or deleted rows.
        Compactions are allowed."""

    def compact(self, target_file_bytes: int) -> Rewritten:
        """Merge small files. Rows do not change; writers may commit during the compaction."""

        def once(table: Loaded) -> Rewritten:
            done = self._compact(table, target_file_bytes)
            if done.files_removed:
                self._sync(table)
            return done

        return self._until_first(once)

    def discard(self, files: Iterable[DataFile]) -> None:
        """Remove the files of an attempt that the table does not contain: an abort may follow a successful commit."""
        self._discard(self._load(), files)

    def paths(self) -> list[str]:
        """Return the absolute paths of the table's current files: a consistent state."""
        return self._paths(self._load())

    # -- implemented by each kind of table -------------------------------------------------------------------

    @abstractmethod
    def _load(self) -> Loaded:
        """Load the current table, or raise NoTableError."""

    @abstractmethod
    def _paths(self, table: Loaded) -> list[str]:
        """Return the absolute paths of the loaded table's files."""

    @abstractmethod
    def _edition_of(self, table: Loaded) -> Edition | None:
        """Return the edition of the loaded table's rows."""

    @abstractmethod
    def _put_aside(self, table: Loaded, edition: Edition) -> None:
        """In one commit remove all rows and set this edition; raises `conflict` as `_add_files` does."""

    @abstractmethod
    def _progress(self, table: Loaded, change: Change) -> tuple[int | None, bool]:
        """Return the last batch of the change's sink in the table, and whether the same run numbered it."""

    @abstractmethod
    def _add_files(self, table: Loaded, change: Change) -> None:
        """Commit files and batch number together; raises `conflict` if the table changed since it was loaded."""

    @abstractmethod
    def _upsert(self, table: Loaded, change: Change, rows: pa.Table, keys: Sequence[str]) -> None:
        """Commit rows by key and batch number together; raises `conflict` as `_add_files` does."""

    @abstractmethod
    def _compact(self, table: Loaded, target_file_bytes: int) -> Rewritten: ...

    @abstractmethod
    def _sync(self, table: Loaded) -> None:
        """Make the last commit durable: the libraries do not."""

    # -- shared by all kinds ---------------------------------------------------------------------------------

    def _check_edition(self, table: Loaded) -> None:
        """Refuse a writer from before the table was recreated: its rows are of another edition."""
        if self.edition is not None and self.edition.replaces(self._edition_of(table), self.title):
            raise LakeError(f"{self.title} has not been recreated yet")

    def _until_first(self, act: Callable[[Loaded], Result]) -> Result:
        """Act on the newest state; after a conflict, reload the table and decide again."""
        for _ in range(COMMIT_ATTEMPTS_MAX):
            try:
                return act(self._load())
            except self.conflict:
                continue
        raise LakeError(
            f"{self.title}: {COMMIT_ATTEMPTS_MAX} commits lost conflicts with other writers; run fewer writers concurrently"
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
