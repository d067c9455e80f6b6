"""Delta tables: Spark's tasks write the files, one entry of Delta's log adds them to the table.

Does not handle: Spark. Files and the batch number (a Delta application transaction) are in one log entry, which is
durable before `commit` returns. An object store accepts an entry only if none exists (If-None-Match), so that one of
two concurrent writers is refused.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from braidlog.model.clock import Clock
from braidlog.spark.lake import editions
from braidlog.spark.lake.contract import Rewritten, State, StoredFile, Table
from braidlog.spark.lake.editions import Edition, parse_edition
from braidlog.spark.lake.errors import LakeError, NoTableError
from braidlog.spark.lake.object_files import ObjectFiles, is_uri
from braidlog.spark.lake.places import make_folders, whole
from braidlog.spark.lake.schemas import check_partitions, merged_schema, table_schema
from braidlog.spark.lake.written import Change
from braidlog.storage.files import Disk, join, read_whole

_LOG = "_delta_log"
_PROBE = "_braidlog-probe-"
"""Prefix of the test objects below the table: readers ignore names with a leading _."""
_HOUR_SECONDS = 3600
_STORE_OPTIONS: Final = {
    "s3.endpoint": "aws_endpoint",
    "s3.region": "aws_region",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.connect-timeout": "connect_timeout",
    "s3.request-timeout": "timeout",
}
_FEATURES_READ = frozenset({"timestampNtz"})
"""Reader features that are supported; with others (deletion vectors, column mapping) rows would be read wrong."""


class DeltaLakeTable(Table):
    """The Delta table in a folder, or below a URI. Readers ignore files that Delta's log does not name."""

    keeps_partition_columns = False
    conflict = CommitFailedError

    def __init__(
        self, path: str, store: Mapping[str, str] | None = None, *, disk: Disk | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(path, disk, clock)
        self.path = path
        self.properties = dict(store or {})
        self._options = _storage_options(self.properties) if is_uri(path) else None

    @property
    def location(self) -> str:
        return self.path

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str], *, merge_schema: bool) -> pa.Schema:
        self._check_store()
        try:
            table = self._load()
        except NoTableError:
            check_partitions(schema, partition_by, None)
            self._create(schema, partition_by)
        else:
            if self.edition is not None and self.edition.replaces(self._edition_of(table), self.title):
                check_partitions(schema, partition_by, None)
                self._put(Schema.from_arrow(schema), partition_by, self.edition)
        self._next_schema(self._load(), schema, partition_by, merge_schema=merge_schema)
        return schema

    def _progress(self, table: DeltaTable, change: Change) -> tuple[int | None, bool]:
        if change.sink is None:
            return None, True
        run = None if change.run is None else table.transaction_version(_run_of(change.sink))
        return table.transaction_version(change.sink), run is None or run == _mark(change.run)

    def _add_files(self, table: DeltaTable, change: Change) -> None:
        self._add_columns(table, change)
        now_ms = self._clock.now_ms()
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.bytes, file.partition, now_ms, True, json.dumps(file.stats))  # noqa: FBT003
            for file in change.files
        ]
        table.create_write_transaction(
            actions,
            "overwrite" if change.overwrite else "append",
            table.schema(),
            list(change.partition_by),
            commit_properties=_commit_properties(change),
        )

    def _upsert(self, table: DeltaTable, change: Change, rows: pa.Table, keys: Sequence[str]) -> None:
        self._add_columns(table, change)
        same = " AND ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in keys)
        columns = {_quoted(name): f"source.{_quoted(name)}" for name in rows.schema.names}
        merger = table.merge(
            rows, same, source_alias="source", target_alias="target", commit_properties=_commit_properties(change)
        )
        merger.when_matched_update(columns).when_not_matched_insert(columns).execute()

    def _paths(self, table: DeltaTable) -> list[str]:
        if not is_uri(self.path):
            return [os.path.abspath(uri) for uri in table.file_uris()]
        # Not by `file_uris`: they escape only some characters, so that names cannot be recovered.
        named = pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist()
        return [join(self.path, unquote(path)) for path in named]

    def _compact(self, table: DeltaTable, target_file_bytes: int) -> Rewritten:
        """Compact files. Concurrent appends do not conflict; another compaction or an overwrite does."""
        self._check_store()
        done = table.optimize.compact(target_size=target_file_bytes)
        return Rewritten(
            done["numFilesRemoved"],
            done["numFilesAdded"],
            _total_size(done["filesRemoved"]),
            _total_size(done["filesAdded"]),
        )

    def vacuum(self, age_seconds: float) -> list[str]:
        """Vacuum the table. Delta counts in hours: round up, so that nothing is removed too early."""
        hours = math.ceil(age_seconds / _HOUR_SECONDS)
        table = self._load()
        named = table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True)
        # It also names files that an earlier vacuum removed, as long as Delta's log names them.
        if is_uri(self.path):
            existing = {path.removeprefix(f"{self.path}/") for path in self._objects().walk()}
            there = [path for path in named if path in existing]
        else:
            there = [path for path in named if self._disk.exists(join(self.path, path))]
        table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True)
        return there

    def state(self, version: int | None) -> State:
        table = self._load(version)
        if strange := set(table.protocol().reader_features or ()) - _FEATURES_READ:
            raise LakeError(f"{self.path}: unsupported reader features {', '.join(sorted(strange))}; use deltalake")
        actions = pa.table(table.get_add_actions(flatten=True))
        values = {name: actions.column(f"partition.{name}").to_pylist() for name in table.metadata().partition_columns}
        # File names are unique; paths are escaped in only one of the two lists.
        by_name = {os.path.basename(path): row for row, path in enumerate(actions.column("path").to_pylist())}
        files = [
            StoredFile(path, {name: each[by_name[os.path.basename(path)]] for name, each in values.items()})
            for path in self._paths(table)
        ]
        return State(table.version(), table_schema(pa.schema(table.schema())), tuple(files))

    def added(self, after: int, upto: int) -> list[StoredFile]:
        files = []
        for version in range(after + 1, upto + 1):
            for action in self._entry(version):
                if action.get("remove", {}).get("dataChange", False) or action.get("add", {}).get("deletionVector"):
                    raise LakeError(
                        f"{self.path}: version {version} changed or deleted rows, but a stream reads added rows only: "
                        "read the table as a batch, or restart with a new checkpoint"
                    )
                if (add := action.get("add")) and add.get("dataChange", True):
                    path = whole(join(self.path, unquote(add["path"])))
                    files.append(StoredFile(path, add.get("partitionValues") or {}))
        return files

    def _entry(self, version: int) -> list[dict[str, Any]]:
        path = join(join(self.path, _LOG), f"{version:020d}.json")
        text = self._objects().read(path) if is_uri(path) else self._read(path)
        if text is None:
            raise LakeError(f"{self.path}: version {version} was removed from its log; restart with a new checkpoint")
        return [json.loads(line) for line in text.splitlines() if line.strip()]

    def _read(self, path: str) -> bytes | None:
        return read_whole(self._disk, path) if self._disk.exists(path) else None

    def _load(self, version: int | None = None) -> DeltaTable:
        try:
            return DeltaTable(self.path, version=version, storage_options=self._options)
        except TableNotFoundError as error:
            raise NoTableError(f"{self.path} is not a Delta table") from error

    def _create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        if is_uri(self.path):
            existing = (path.removeprefix(f"{self.path}/") for path in self._objects().walk())
            strange = [name for name in existing if not name.startswith((f"{_LOG}/", _PROBE))]
        else:
            make_folders(self._disk, self.path, _LOG)
            strange = [name for name in self._disk.names(self.path) if name != _LOG]
        if strange:
            # `vacuum` removes files that Delta's log does not name: there must be no other files.
            raise LakeError(
                f"{self.path} is not a Delta table and contains {strange[0]!r}: create the table in an empty folder"
            )
        self._put(Schema.from_arrow(schema), partition_by, self.edition, mode="ignore")

    def _put(
        self,
        schema: Schema,
        partition_by: Sequence[str],
        edition: Edition | None,
        *,
        mode: Literal["ignore", "overwrite"] = "overwrite",
    ) -> None:
        """Write a table without rows in one log entry: replace the existing one, or create it only if there is
        none."""
        said = {} if edition is None else {editions.PROPERTY: str(edition)}
        self._sync(
            DeltaTable.create(
                self.path,
                schema,
                mode=mode,
                partition_by=list(partition_by),
                configuration=said,
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )
        )

    def _edition_of(self, table: DeltaTable) -> Edition | None:
        return parse_edition(table.metadata().configuration.get(editions.PROPERTY))

    def _put_aside(self, table: DeltaTable, edition: Edition) -> None:
        self._put(table.schema(), table.metadata().partition_columns, edition)

    def forget_earlier(self) -> None:
        """Do nothing: earlier editions are older versions of the same table, which `vacuum` removes."""

    def _objects(self) -> ObjectFiles:
        return ObjectFiles(self.path, self.properties)

    def _check_store(self) -> None:
        """Check once per process that the store refuses an existing entry: otherwise two writers would silently lose
        rows."""
        if not is_uri(self.path):
            return
        try:
            from braidlog.spark.lake.conditional_puts import refuses_second  # noqa: PLC0415 - tables on a disk do without
        except ImportError as error:
            raise LakeError(f"Delta tables in an object store need `pip install 'braidlog[lake]'`: {error}") from error
        if not refuses_second(self.path, self._options or {}, _PROBE):
            raise LakeError(
                f"{self.path}: the store ignores If-None-Match and overwrites objects, so that concurrent writers of "
                "a Delta table would lose rows. Use a store with conditional puts, or Iceberg, whose catalog resolves conflicts"
            )

    def _next_schema(
        self, table: DeltaTable, schema: pa.Schema, partition_by: Sequence[str], *, merge_schema: bool
    ) -> pa.Schema:
        old = table_schema(pa.schema(table.schema()))
        check_partitions(schema, partition_by, table.metadata().partition_columns)
        return merged_schema(old, schema, merge=merge_schema)

    def _add_columns(self, table: DeltaTable, change: Change) -> None:
        """Add columns in a separate entry, before the files that have them: readers see a consistent table."""
        new = self._next_schema(table, change.schema, change.partition_by, merge_schema=change.merge_schema)
        known = {field.name for field in table.schema().fields}
        added = [field for field in Schema.from_arrow(new).fields if field.name not in known]
        if added:
            table.alter.add_columns(added)

    def _sync(self, table: DeltaTable) -> None:
        """Sync the log entry: the library does not, and a power cut could remove an entry that Spark has committed."""
        if is_uri(self.path):
            return
        folder = join(self.path, _LOG)
        self._sync_file(join(folder, f"{table.version():020d}.json"))
        self._disk.sync_folder(folder)
        self._disk.sync_folder(self.path)


def _storage_options(store: Mapping[str, str]) -> dict[str, str]:
    """Translate pyiceberg's names to deltalake's. Missing options come from the store's usual environment."""
    from braidlog.tables.files import PATIENCE, store_properties  # noqa: PLC0415 - tables on a disk do without pyiceberg

    options = {"timeout": f"{PATIENCE['s3.request-timeout']}s", "connect_timeout": f"{PATIENCE['s3.connect-timeout']}s"}
    for name, value in store_properties(store).items():
        if name not in _STORE_OPTIONS:
            raise LakeError(f"store.{name}: a Delta table's store has the properties {', '.join(_STORE_OPTIONS)}")
        options[_STORE_OPTIONS[name]] = f"{value}s" if name.endswith("-timeout") else value
    if options.get("aws_endpoint", "").startswith("http://"):
        options["aws_allow_http"] = "true"
    return options


def _commit_properties(change: Change) -> CommitProperties:
    once = None if change.once is None else [Transaction(*change.once)]
    if once and change.run is not None:
        once.append(Transaction(_run_of(change.sink), _mark(change.run)))
    return CommitProperties(app_transactions=once)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _run_of(sink: str | None) -> str:
    """Return the application id that records which query counts the sink's batches: Delta keeps one number per
    application."""
    return f"{sink}#run"


def _mark(run: str | None) -> int:
    return int.from_bytes(hashlib.blake2b((run or "").encode(), digest_size=7).digest())


def _total_size(files: object) -> int:
    """Return the size in `{"totalFiles": …, "totalSize": …}`, which some versions encode as a string."""
    totals = json.loads(files) if isinstance(files, str) else files
    return int(totals["totalSize"]) if isinstance(totals, dict) else 0
