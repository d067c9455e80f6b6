"""A plain folder of Parquet files as a table: what anybody who lists it reads is each committed row, once.

Knows: the order in which a journal's entry and the names of files become durable. Refuses to know: Spark, rows, who asks.
Invariants: a file gets a visible name only after a durable entry names it; an entry is written only after everything that the
entry before it says has been done; what no entry names is never visible. So a change that was interrupted anywhere is either
not there (its staged files are orphans), or is finished by whoever comes next.

A listing while a change is being carried out may show a part of it: a plain folder has no moment in which all names change.
It never shows a row twice: old names go before new ones come.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from braidlog.model.clock import Clock, SystemClock
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.spark.lake.contract import NoTableError, Rewritten
from braidlog.spark.lake.grouping import groups_to_rewrite
from braidlog.spark.lake.journal import FOLDER, Entry, Journal, State
from braidlog.spark.lake.places import make_folders
from braidlog.spark.lake.schemas import check_partitions, merged_schema, read_schema, schema_bytes
from braidlog.spark.lake.writing import Form, rows_of, write_partition
from braidlog.spark.lake.written import Change, DataFile, hidden_since_ms, replaced_path, staged_path
from braidlog.storage.files import Disk, Lock, OsDisk, join, parent

LOCK_SECONDS_MAX = 60.0
_LOOK_AGAIN_SECONDS = 0.05


class FolderTable:
    """The table in one folder. Any number of processes may hold one each; the lock orders them."""

    stages = True
    """Tasks write under staged names."""
    keeps_partition_columns = False

    def __init__(self, path: str, *, disk: Disk | None = None, clock: Clock | None = None) -> None:
        self.path = path
        self.location = path
        self._disk = disk or OsDisk()
        self._clock = clock or SystemClock()

    # -- what a sink asks ------------------------------------------------------------------------------------

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str], *, merge_schema: bool) -> pa.Schema:
        make_folders(self._disk, self.path, FOLDER)
        with self._held() as journal:
            self._next_schema(journal.state, schema, partition_by, merge_schema=merge_schema)
        return schema

    def commit(self, change: Change) -> bool:
        # Their names may be another's who was killed before it synced them.
        make_folders(self._disk, self.path, FOLDER)
        with self._held() as journal:
            state = journal.state
            sink = change.sink or ""
            is_same_run = change.run is None or state.runs.get(sink) in (None, change.run)
            if not change.is_after(state.sinks.get(sink), is_same_run=is_same_run):
                self._discard(change.files)
                return False
            schema = self._next_schema(state, change.schema, change.partition_by, merge_schema=change.merge_schema)
            self._check_staged(change.files)
            gone = tuple(state.files) if change.overwrite else ()
            self._carry_out(
                journal,
                Entry(
                    state.sequence + 1,
                    self._clock.now_ms(),
                    _named(change.files),
                    gone,
                    sink=change.sink,
                    batch=change.batch,
                    run=change.run,
                    schema=schema,
                    partition_by=change.partition_by if state.partition_by is None else None,
                ),
            )
            return True

    def discard(self, files: Iterable[DataFile]) -> None:
        with self._held():
            self._discard(files)

    def last_batch(self, sink: str) -> int | None:
        with self._held() as journal:
            return journal.state.sinks.get(sink)

    def files(self) -> list[DataFile]:
        """The table's files now: the one way to list them that no change ever cuts in half."""
        with self._held() as journal:
            return list(journal.state.files.values())

    def paths(self) -> list[str]:
        return [join(self.path, file.path) for file in self.files()]

    # -- what upkeep asks ------------------------------------------------------------------------------------

    def compact(self, target_file_bytes: int) -> Rewritten:
        """Each group is a change of its own: one that loses against another writer is left as it is."""
        with self._held() as journal:
            files, schema = list(journal.state.files.values()), journal.state.schema
            partition_by = journal.state.partition_by or ()
        if schema is None:
            return Rewritten()
        form = Form(self.path, read_schema(schema), partition_by, stages=True, target_file_bytes=target_file_bytes)
        done = Rewritten()
        for group in groups_to_rewrite(files, lambda file: file.folder, lambda file: file.bytes, target_file_bytes):
            rows = rows_of((join(self.path, file.path) for file in group), form.file_schema)
            try:
                new = write_partition(rows, form, group[0].partition, disk=self._disk, clock=self._clock)
            except FileNotFoundError:
                if {file.path for file in group} <= {file.path for file in self.files()}:
                    raise  # somebody has removed what the table names
                continue  # somebody has overwritten the table meanwhile
            if self.replace([file.path for file in group], new):
                done += Rewritten(len(group), len(new), sum(f.bytes for f in group), sum(f.bytes for f in new))
        return done

    def replace(self, old: Iterable[str], new: Sequence[DataFile]) -> bool:
        """Put staged files in the place of others that hold the same rows; False if one of those is gone meanwhile."""
        with self._held() as journal:
            old = tuple(old)
            if not all(path in journal.state.files for path in old):
                self._discard(new)
                return False
            self._check_staged(new)
            entry = Entry(journal.state.sequence + 1, self._clock.now_ms(), _named(new), old)
            self._carry_out(journal, entry)
            return True

    def vacuum(self, age_seconds: float) -> list[str]:
        """Remove what failed attempts and replacements left, if it is older than this. What a running batch has staged is
        younger, if `age_seconds` is more than a batch takes; if not, its commit finds the file missing and fails."""
        removed = []
        oldest_ms = self._clock.now_ms() - int(age_seconds * 1000)
        # Whoever holds the lock has carried out the last entry: no hidden file is one that the table names.
        with self._held():
            for path in self._walk(""):
                since_ms = hidden_since_ms(path.rpartition("/")[2])
                if since_ms is not None and since_ms <= oldest_ms:
                    self._disk.remove(join(self.path, path))
                    removed.append(path)
        return removed

    # -- carrying out ----------------------------------------------------------------------------------------

    def _carry_out(self, journal: Journal, entry: Entry) -> None:
        journal.write(entry)
        self._finish(entry)
        journal.maybe_fold()

    def _finish(self, entry: Entry) -> None:
        """Give every file the name that the entry says; as often as one likes."""
        self._rename_all([(path, replaced_path(path, entry.at_ms)) for path in entry.remove])
        self._rename_all([(staged_path(file.path), file.path) for file in entry.add])

    def _rename_all(self, renames: Sequence[tuple[str, str]]) -> None:
        for old, new in renames:
            if self._disk.exists(join(self.path, old)):
                self._disk.rename(join(self.path, old), join(self.path, new))
        # Also where there was nothing to rename: it may have been done by a process that was killed before it synced.
        for folder in dict.fromkeys(parent(join(self.path, new)) for _, new in renames):
            if self._disk.exists(folder):
                self._disk.sync_folder(folder)

    def _check_staged(self, files: Iterable[DataFile]) -> None:
        for file in files:
            path = join(self.path, staged_path(file.path))
            if not self._disk.exists(path):
                raise StorageFault(
                    "a task wrote this file and the driver does not find it: the path must be one folder for all machines, "
                    "and `vacuum` must not be told an age shorter than a batch takes",
                    path,
                )

    def _discard(self, files: Iterable[DataFile]) -> None:
        """With the lock held, what still has its staged name is what no entry names."""
        for file in files:
            path = join(self.path, staged_path(file.path))
            if self._disk.exists(path):
                self._disk.remove(path)

    # -- the lock --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _held(self) -> Iterator[Journal]:
        """The journal, with the lock held and the last entry carried out."""
        journal = Journal(self._disk, self.path)
        if not self._disk.exists(journal.folder):
            raise NoTableError(f"{self.path} is no table of ours")
        lock = self._take_lock(join(journal.folder, "lock"))
        try:
            journal.open()
            if journal.state.sequence == 0:
                self._check_empty()
            if journal.last is not None:
                self._finish(journal.last)
            yield journal
        finally:
            lock.release()

    def _take_lock(self, path: str) -> Lock:
        deadline = self._clock.monotonic() + LOCK_SECONDS_MAX
        while True:
            try:
                return self._disk.lock(path)
            except BrokerError as error:
                if error.reason is not Reason.FOLDER_IN_USE or self._clock.monotonic() > deadline:
                    raise
                threading.Event().wait(_LOOK_AGAIN_SECONDS)

    def _check_empty(self) -> None:
        for path in self._walk(""):
            if hidden_since_ms(path.rpartition("/")[2]) is None:
                raise StorageFault(f"there is {path!r} and no journal: a table begins in an empty folder", self.path)

    def _walk(self, folder: str) -> Iterator[str]:
        """Every file below, but for the journal's."""
        for name in self._disk.names(join(self.path, folder)):
            path = f"{folder}/{name}" if folder else name
            if path == FOLDER:
                continue
            if self._disk.is_folder(join(self.path, path)):
                yield from self._walk(path)
            else:
                yield path

    def _next_schema(
        self, state: State, schema: pa.Schema, partition_by: Sequence[str], *, merge_schema: bool
    ) -> bytes | None:
        """The table's schema after rows of `schema`, if they change it."""
        check_partitions(schema, partition_by, state.partition_by)
        old = None if state.schema is None else read_schema(state.schema)
        new = merged_schema(old, schema, merge=merge_schema)
        return None if old is not None and new.equals(old) else schema_bytes(new)


def _named(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """As the journal names them. Nobody asks it for bounds: readers find them in the files, and every commit reads the state."""
    return tuple(file.without_stats() for file in files)
