"""Iceberg tables: Spark's tasks write the files, one commit of the catalog adds them to the table.

Does not handle: Spark, the kind of catalog. Files and the batch number (a table property) are in one commit. The
commit fails if another writer committed since the number was read; then everything is decided again.

The number is a table property, not only a snapshot property, because snapshots expire.
"""

import contextlib
import datetime as dt
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_files_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table, TableProperties, Transaction
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.upsert_util import create_match_filter
from pyiceberg.transforms import IdentityTransform

from braidlog.model.clock import Clock
from braidlog.spark.lake import contract, editions
from braidlog.spark.lake.contract import Rewritten, State, StoredFile
from braidlog.spark.lake.editions import Edition, parse_edition
from braidlog.spark.lake.errors import LakeError, NoTableError
from braidlog.spark.lake.grouping import groups_to_rewrite
from braidlog.spark.lake.object_files import ObjectFiles, is_uri
from braidlog.spark.lake.places import make_folders, whole
from braidlog.spark.lake.schemas import check_partitions, merged_schema, table_schema
from braidlog.spark.lake.writing import Form, rows_of, write_files
from braidlog.spark.lake.written import Change, DataFile, made_at_ms
from braidlog.storage.files import Disk, join
from braidlog.tables.catalog import open_catalog

_SINK = "braidlog.sink."
_RUN = "braidlog.run."
_FILE = "file:"
_CATALOG_FILE = "catalog.db"
_NUMBERED_FORMAT = 2
_BEFORE = "_before_"
"""Separates a table's name from the edition that replaced it."""
_COMPACTION = "braidlog.compaction"
"""Marks a snapshot with the rows of the previous one, in other files."""
_WIDER = {pa.int8(): pa.int32(), pa.int16(): pa.int32()}
"""Iceberg's smallest integer type has 32 bits."""


def local_catalog(path: str) -> dict[str, str]:
    """Return the default catalog: a file beside the table."""
    return {"type": "sql", "uri": f"sqlite:///{join(path, _CATALOG_FILE)}", "warehouse": path}


class IcebergTable(contract.Table):
    """A table of a catalog; every machine can reach its files by path."""

    keeps_partition_columns = True
    """Iceberg reads a file's partition values from the file."""
    conflict = CommitFailedException

    def __init__(
        self,
        name: str,
        catalog: Mapping[str, str],
        *,
        home: str | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`home`: the folder of a catalog that is a file beside the table."""
        super().__init__(name, disk, clock)
        self.name = name
        self._home = home
        self._options = dict(catalog)
        self.properties = dict(catalog)
        self._known_location: str | None = None
        self._opened: Catalog | None = None

    @property
    def location(self) -> str:
        if self._known_location is None:
            self._known_location = join(_local(self._load().location()), "data")
        return self._known_location

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str], *, merge_schema: bool) -> pa.Schema:
        schema = table_schema(schema, _WIDER)
        if self._home is not None:
            make_folders(self._disk, self._home, "")
        catalog = self._catalog()
        try:
            table = catalog.load_table(self.name)
        except NoSuchTableError:
            check_partitions(schema, partition_by, None)
            table = self._create(catalog, schema, partition_by)
        else:
            self._check_edition(table)
        self._next_schema(table, schema, partition_by, merge_schema=merge_schema)
        return schema

    def _progress(self, table: Table, change: Change) -> tuple[int | None, bool]:
        last = table.properties.get(f"{_SINK}{change.sink}")
        is_same_run = change.run is None or table.properties.get(f"{_RUN}{change.sink}") in (None, change.run)
        return None if last is None else int(last), is_same_run

    def _paths(self, table: Table) -> list[str]:
        return [whole(_local(task.file.file_path)) for task in table.scan().plan_files()]

    def state(self, version: int | None) -> State:
        table = self._load()
        _check_names_stand_still(table)
        if table.format_version < _NUMBERED_FORMAT:
            raise LakeError(
                f"{self.name}: snapshots of format {table.format_version} have no sequence numbers; upgrade to format 2"
            )
        snapshot = table.current_snapshot() if version is None else None
        if version:
            snapshot = self._numbered_snapshot(table, version)
        if snapshot is None:  # sequence numbers start at 1
            return State(0, _arrow_schema(table), ())
        tasks = list(table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
        if deleted := next((task for task in tasks if task.delete_files), None):
            raise LakeError(f"{self.name}: delete files apply to rows of {deleted.file.file_path}; use pyiceberg")
        files = tuple(StoredFile(whole(_local(task.file.file_path)), {}) for task in tasks)
        return State(snapshot.sequence_number or 0, _arrow_schema(table), files)

    def added(self, after: int, upto: int) -> list[StoredFile]:
        table = self._load()
        files = []
        for number in range(after + 1, upto + 1):
            snapshot = self._numbered_snapshot(table, number)
            summary = snapshot.summary
            if summary is not None and summary.get(_COMPACTION):
                continue
            if summary is None or summary.operation is not Operation.APPEND:
                raise LakeError(
                    f"{self.name}: snapshot {number} changed or deleted rows, but a stream reads added rows only: "
                    "read the table as a batch, or restart with a new checkpoint"
                )
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id == snapshot.snapshot_id:
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    files += [
                        StoredFile(whole(_local(entry.data_file.file_path)), {})
                        for entry in entries
                        if entry.status is ManifestEntryStatus.ADDED
                    ]
        return files

    def _numbered_snapshot(self, table: Table, number: int) -> Snapshot:
        for snapshot in table.snapshots():
            if snapshot.sequence_number == number:
                return snapshot
        raise LakeError(f"{self.name}: no snapshot has sequence number {number}: it has expired, or does not exist yet")

    def _compact(self, table: Table, target_file_bytes: int) -> Rewritten:
        _check_names_stand_still(table)
        tasks = [task for task in table.scan().plan_files() if not task.delete_files and _is_ours(task)]
        groups = groups_to_rewrite(
            tasks, lambda task: (task.file.spec_id, repr(task.file.partition)), _size_of, target_file_bytes
        )
        if not groups:
            return Rewritten()
        old = [task for group in groups for task in group]
        new = [file for group in groups for file in self._rewrite(table, group, target_file_bytes)]
        try:
            self._replace(table, old, new)
        except CommitFailedException:
            self._remove(new)
            raise
        return Rewritten(len(old), len(new), sum(map(_size_of, old)), sum(file.bytes for file in new))

    def vacuum(self, age_seconds: float) -> list[str]:
        """Expire snapshots of that age, then remove files that no snapshot names. Only files with braidlog's names
        are removed."""
        oldest_ms = self._clock.now_ms() - int(age_seconds * 1000)
        oldest = dt.datetime.fromtimestamp(oldest_ms / 1000, dt.UTC)
        table = self._load()
        current = table.current_snapshot()
        if any(s.timestamp_ms < oldest_ms and s is not current for s in table.snapshots()):
            table.maintenance.expire_snapshots().older_than(oldest.replace(tzinfo=None)).commit()
            table = self._load()
        named = set(_named_by_any_snapshot(table))
        removed = []
        for path in self._walk(self.location):
            made_ms = made_at_ms(path.rpartition("/")[2])
            if made_ms is not None and made_ms <= oldest_ms and whole(path) not in named:
                self._remove_file(path)
                removed.append(path)
        return removed

    # -- the catalog -----------------------------------------------------------------------------------------

    def _catalog(self) -> Catalog:
        if self._opened is None:
            # Some catalogs store tables under the catalog's name: pyiceberg's default is `default`.
            self._opened = open_catalog("default", self._options)
        return self._opened

    def _load(self) -> Table:
        if self._home is not None and not self._disk.exists(join(self._home, _CATALOG_FILE)):
            raise NoTableError(f"{self._home} is not an Iceberg table")  # opening a catalog would create one
        try:
            table = self._catalog().load_table(self.name)
        except NoSuchTableError as error:
            raise NoTableError(f"the catalog has no table {self.name}") from error
        # For this object only: the library would retry a lost commit without checking whether the winner was the same
        # batch. We retry after that check.
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        return table

    def _create(self, catalog: Catalog, schema: pa.Schema, partition_by: Sequence[str]) -> Table:
        # Another driver may create either concurrently: then it exists, and its schema is checked next.
        with contextlib.suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        # An edition is created under its own name, which determines its folder, and then renamed to the table's name.
        # An edition of a killed process has no rows, and is dropped.
        name = self.name if self.edition is None else f"{self.name}_{self.edition.number}"
        if self.edition is not None:
            with contextlib.suppress(NoSuchTableError):
                catalog.drop_table(name)
        said = {} if self.edition is None else {editions.PROPERTY: str(self.edition)}
        with (
            contextlib.suppress(TableAlreadyExistsError),
            catalog.create_table_transaction(name, schema=schema, properties=said) as transaction,
            transaction.update_spec() as spec,
        ):
            for column in partition_by:
                spec.add_identity(column)
        if name != self.name:
            catalog.rename_table(name, self.name)
        return catalog.load_table(self.name)

    def _edition_of(self, table: Table) -> Edition | None:
        return parse_edition(table.properties.get(editions.PROPERTY))

    def _put_aside(self, table: Table, edition: Edition) -> None:
        """Rename the table: its files stay in place until `forget_earlier`."""
        del table
        self._catalog().rename_table(self.name, f"{self.name}{_BEFORE}{edition.number}")

    def forget_earlier(self) -> None:
        if self.edition is None:
            return
        catalog, (space, _, short) = self._catalog(), self.name.rpartition(".")
        for identifier in catalog.list_tables(space) if catalog.namespace_exists(space) else ():
            if not re.fullmatch(rf"{re.escape(short)}{_BEFORE}\d+", identifier[-1]):
                continue
            table = catalog.load_table(identifier)
            its = self._edition_of(table)
            if its is None or its.owner != self.edition.owner:
                continue
            folder = table.location()
            catalog.purge_table(identifier)
            if folder.endswith(f"/{short}_{its.number}"):  # created by `_create`
                objects = ObjectFiles(folder, self.properties)
                for path in objects.walk():
                    objects.remove(path)

    def _next_schema(
        self, table: Table, schema: pa.Schema, partition_by: Sequence[str], *, merge_schema: bool
    ) -> pa.Schema:
        check_partitions(schema, partition_by, _partition_columns(table))
        return merged_schema(_arrow_schema(table), schema, merge=merge_schema)

    def _add_files(self, table: Table, change: Change) -> None:
        with self._numbered(table, change) as (transaction, summary):
            if change.overwrite and table.current_snapshot() is not None:
                transaction.delete(AlwaysTrue(), summary)
            if change.files:
                base = table.location()
                paths = [f"{base}/data/{file.path}" for file in change.files]
                # File names are new in each batch: searching every manifest for them would become slower with each
                # batch.
                transaction.add_files(paths, summary, check_duplicate_files=False)

    def _upsert(self, table: Table, change: Change, rows: pa.Table, keys: Sequence[str]) -> None:
        snapshot = table.current_snapshot()
        written = None if snapshot is None else table.schemas().get(snapshot.schema_id or 0)
        with self._numbered(table, change) as (transaction, summary):
            if written is None or len(written.fields) == len(rows.column_names):
                transaction.upsert(rows, list(keys), snapshot_properties=summary)
            else:
                # Its upsert compares rows by the columns of the last snapshot, and fails if there are more now
                # (pyiceberg 0.12). So do it in two steps: delete the rows with these keys, append all rows. A delete
                # without a match is not worth a warning.
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Delete operation did not match", UserWarning)
                    transaction.overwrite(rows, create_match_filter(rows, list(keys)), snapshot_properties=summary)

    @contextlib.contextmanager
    def _numbered(self, table: Table, change: Change) -> Iterator[tuple[Transaction, dict[str, str]]]:
        """Provide a transaction with the change's columns and batch number, and its snapshot properties."""
        new = self._next_schema(table, change.schema, change.partition_by, merge_schema=change.merge_schema)
        sink, batch = change.once or ("", "")
        summary = {"braidlog.sink": sink, "braidlog.batch": str(batch)} if sink else {}
        with table.transaction() as transaction:
            if len(new) > len(table.schema().fields):
                with transaction.update_schema() as update:
                    update.union_by_name(new)
            if sink:
                run = {} if change.run is None else {f"{_RUN}{sink}": change.run}
                transaction.set_properties({f"{_SINK}{sink}": str(batch), **run})
            yield transaction, summary

    # -- files -----------------------------------------------------------------------------------------------

    def _rewrite(self, table: Table, tasks: Sequence[FileScanTask], target_file_bytes: int) -> list[DataFile]:
        schema = _arrow_schema(table)
        # Not by the library's scan: it turns a null list of structs into an empty one (pyiceberg 0.12).
        rows = rows_of((_local(task.file.file_path) for task in tasks), schema, self.properties)
        form = Form(
            self.location,
            schema,
            _partition_columns(table),
            keeps_partition_columns=True,
            target_file_bytes=target_file_bytes,
            properties=self.properties,
        )
        disk = None if is_uri(self.location) else self._disk
        return write_files(rows, form, disk=disk, clock=self._clock)

    def _replace(self, table: Table, old: Sequence[FileScanTask], new: Sequence[DataFile]) -> None:
        base = table.location()
        paths = iter([f"{base}/data/{file.path}" for file in new])
        said = {_COMPACTION: "true"}
        with table.transaction() as transaction, transaction.update_snapshot(said).overwrite() as producer:
            for task in old:
                producer.delete_data_file(task.file)
            for data_file in parquet_files_to_data_files(table.io, table.metadata, paths):
                producer.append_data_file(data_file)

    def _walk(self, folder: str) -> Iterator[str]:
        if is_uri(folder):
            yield from ObjectFiles(folder, self.properties).walk()
            return
        for name in self._disk.names(folder):
            path = join(folder, name)
            if self._disk.is_folder(path):
                yield from self._walk(path)
            else:
                yield path

    def _sync(self, table: Table) -> None:
        """Sync written files before Spark learns of the commit: the library does not sync them."""
        if is_uri(self.location):
            return
        folder = join(os.path.dirname(self.location), "metadata")
        snapshot = table.current_snapshot()
        written = [table.metadata_location]
        if snapshot is not None:
            manifests = snapshot.manifests(table.io)
            new = [
                manifest.manifest_path for manifest in manifests if manifest.added_snapshot_id == snapshot.snapshot_id
            ]
            written += [snapshot.manifest_list, *new]
        for path in written:
            self._sync_file(_local(path))
        if self._disk.exists(folder):
            self._disk.sync_folder(folder)


def _size_of(task: FileScanTask) -> int:
    return int(task.file.file_size_in_bytes)


def _local(location: str) -> str:
    """Return a path valid on all machines, or the URI of an object."""
    return "/" + location.removeprefix(_FILE).lstrip("/") if location.startswith(_FILE) else location


def _is_ours(task: FileScanTask) -> bool:
    """Return whether a file is braidlog's: it maps columns by name, other writers' files may use ids."""
    return made_at_ms(str(task.file.file_path).rpartition("/")[2]) is not None


def _check_names_stand_still(table: Table) -> None:
    """Check that no column was renamed or dropped: compaction matches columns by name."""
    now = {name: table.schema().find_field(name).field_id for name in table.schema().column_names}
    for schema in table.schemas().values():
        for name in schema.column_names:
            if now.get(name) != schema.find_field(name).field_id:
                raise LakeError(
                    f"{table.name()}: column {name!r} was renamed or dropped; compact this table with another tool"
                )


def _arrow_schema(table: Table) -> pa.Schema:
    return table_schema(schema_to_pyarrow(table.schema(), include_field_ids=False))


def _partition_columns(table: Table) -> tuple[str, ...]:
    fields = table.spec().fields
    if not all(isinstance(field.transform, IdentityTransform) for field in fields):
        raise LakeError(f"{table.name()}: its partitions are not plain columns; {table.spec()}")
    return tuple(table.schema().find_column_name(field.source_id) or "" for field in fields)


def _named_by_any_snapshot(table: Table) -> Iterator[str]:
    seen: set[str] = set()
    for snapshot in table.snapshots():
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield whole(_local(entry.data_file.file_path))
