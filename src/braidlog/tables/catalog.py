"""A topic's table in its catalog: commits rows and offsets together, removes old rows and unused files.

Does not handle: segments, writing Parquet. A commit contains the files of some partitions, and each partition's
exported offset as a table property. It fails if another writer has committed since the offsets were read. So a node
that exports a range again, after a crash or concurrently with another node, finds it exported, and its files never
become rows. A file below a partition's offset that no snapshot names never becomes rows, and is removed.
"""

import contextlib
import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from braidlog.model.errors import BrokerError, Reason
from braidlog.tables import evolution
from braidlog.tables.files import PATIENCE, TableIO
from braidlog.tables.plan import Plan, TablePlace

OFFSET: Final = "braidlog.offset."
"""Prefix of a partition's number in the properties of the table, and of braidlog's snapshots."""
UNDECODED: Final = "braidlog.undecoded"
"""The number of rows whose value does not match the topic's format: their columns are null."""
TOPIC_ID: Final = "braidlog.topic-id"
KEPT_SNAPSHOTS_MS: Final = 24 * 3600 * 1000
"""How long a snapshot that is not the newest is kept: its readers must be able to finish."""
FORGET_EVERY_MS: Final = 3600 * 1000
"""Interval between expirations of snapshots, because each is a commit."""
SNAPSHOTS_MAX: Final = 100
"""Expire earlier if there are this many: metadata lists all of them, and every commit rewrites it."""
_KEPT_SMALL: Final = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Properties of a new table, which bound its metadata: a topic commits for years."""
_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-[0-9a-f]{32}\.parquet")
_IO = f"{TableIO.__module__}.{TableIO.__qualname__}"


def catalog_of(place: TablePlace) -> Catalog:
    warehouse = uri_of(place.warehouse)
    options = {"warehouse": warehouse, "py-io-impl": _IO, **PATIENCE, **place.catalog}
    if not place.catalog:
        if not warehouse.startswith("file://"):
            raise BrokerError(Reason.INVALID_SETTING, f"tables in {warehouse} need a catalog: set tables.catalog")
        folder = warehouse.removeprefix("file://")
        TableIO().new_output(f"{folder}/.braidlog").create(overwrite=True).close()  # creates the folder durably
        options |= {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    return open_catalog("braidlog", options)


def uri_of(place: str) -> str:
    return place.rstrip("/") if "://" in place else f"file://{place.rstrip('/')}"


def open_table(plan: Plan, schema: pa.Schema) -> Table:
    """Open or create the topic's table. The table of an earlier topic with the same name is renamed."""
    catalog = catalog_of(plan.place)
    name = (plan.place.namespace, plan.topic)
    with contextlib.suppress(NoSuchTableError):
        table = _load(catalog, name)
        owner = table.properties.get(TOPIC_ID)
        if owner == plan.topic_id:
            return table
        if owner is None:
            raise BrokerError(
                Reason.INVALID_SETTING,
                f"the catalog has a table {'.'.join(name)} that belongs to no topic: rename it, or set tables.namespace",
            )
        catalog.rename_table(name, (plan.place.namespace, f"{plan.topic}_{owner[:8]}"))
    with contextlib.suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace_if_not_exists(name[:1])
    location = f"{uri_of(plan.place.warehouse)}/{plan.place.namespace}/{plan.topic}-{plan.topic_id[:8]}"
    with contextlib.suppress(TableAlreadyExistsError):  # another node created it
        catalog.create_table(name, schema, location, properties={TOPIC_ID: plan.topic_id, **_KEPT_SMALL})
    return _load(catalog, name)


def _load(catalog: Catalog, name: tuple[str, ...]) -> Table:
    table = catalog.load_table(name)
    # For this object only: pyiceberg would retry a lost commit without checking the offsets again.
    table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
    return table


def again(table: Table) -> Table:
    """Reload the table."""
    return _load(table.catalog, table.name())


def offsets_of(properties: Mapping[str, str]) -> dict[int, int]:
    offsets = {name.removeprefix(OFFSET): at for name, at in properties.items() if name.startswith(OFFSET)}
    return {int(number): int(at) for number, at in offsets.items()}


def undecoded_of(properties: Mapping[str, str]) -> int:
    return int(properties.get(UNDECODED, 0))


def columns_of(table: Table) -> pa.Schema:
    columns = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.schema([pa.field(column.name, evolution.written(column.type)) for column in columns])


def takes(table: Table, columns: pa.Schema) -> bool:
    """Return whether the table can have these columns, beside those that another node added concurrently."""
    has = {each.name.lower(): each for each in columns_of(table)}
    return all(
        its is None or (its.name == column.name and evolution.fits(column.type, evolution.grown(its.type, column.type)))
        for column in columns
        for its in (has.get(column.name.lower()),)
    )


def _grown(table: Table, columns: pa.Schema) -> pa.Schema | None:
    """Return the columns to update; None if there are none."""
    has = {each.name: each.type for each in columns_of(table)}
    own = {column.name: evolution.grown(has.get(column.name, column.type), column.type) for column in columns}
    return pa.schema(own) if any(has.get(name) != kind for name, kind in own.items()) else None


# -- files ---------------------------------------------------------------------------------------------------------


def data_folder(table: Table) -> str:
    return f"{table.location()}/data"


def file_name(partition: int, begin: int, end: int, token: str) -> str:
    """Name a file by its partition and offsets, which show whether it can still become part of the table."""
    return f"{partition}-{begin}-{end}-{token}.parquet"


def sweep(table: Table, now_ms: int) -> bool:
    """Remove files that never became rows, files of expired rows, and unused metadata. Return whether nothing remains
    that a later export may turn into such a file."""
    done, files = offsets_of(table.properties), table.io
    assert isinstance(files, TableIO)
    folder, metadata = data_folder(table), f"{table.location()}/metadata"
    ours = [match for name in files.names(folder) if (match := _NAME.fullmatch(name))]
    left = {match[0]: folder for match in ours if int(match[3]) <= done.get(int(match[1]), 0)}
    is_all = len(left) == len(ours)
    # Metadata files have no offsets in their names: a young one may belong to a commit in progress.
    oldest_ms = now_ms - KEPT_SNAPSHOTS_MS
    left |= {
        name: metadata
        for name, written_ms in files.names(metadata).items()
        if written_ms < oldest_ms and name.endswith((".avro", ".metadata.json"))
    }
    # Compare base names, which are unique: another engine may write the folder differently.
    for path in _files_of_all(table) if left else ():
        left.pop(path.rpartition("/")[2], None)
    for name, its in left.items():
        files.delete(f"{its}/{name}")
    return is_all


def _files_of_all(table: Table) -> Iterator[str]:
    """Yield every file that the newest metadata refers to."""
    yield table.metadata_location
    yield from (each.metadata_file for each in table.metadata.metadata_log)
    seen: set[str] = set()
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield str(entry.data_file.file_path)


# -- commits -------------------------------------------------------------------------------------------------------


def commit(
    table: Table, paths: Sequence[str], offsets: Mapping[int, int], columns: pa.Schema, undecoded: int = 0
) -> None:
    """Add the files and the exported offsets in one commit. `CommitFailedException`: another writer committed
    first."""
    said = {f"{OFFSET}{number}": str(at) for number, at in sorted({**offsets_of(table.properties), **offsets}.items())}
    with table.transaction() as transaction:
        if (more := _grown(table, columns)) is not None:
            with transaction.update_schema() as update:
                update.union_by_name(more)
        transaction.set_properties(said)
        if undecoded:
            transaction.set_properties({UNDECODED: str(undecoded_of(table.properties) + undecoded)})
        if paths:
            transaction.add_files(list(paths), said, check_duplicate_files=False)
        else:
            # Only aborted records: commit a snapshot without files anyway, or two nodes could move the offsets
            # concurrently.
            with transaction.update_snapshot(said).fast_append():
                pass


def expire_rows(table: Table, oldest_ms: int) -> bool:
    """Remove files from the table whose records are all older; return whether there were any."""
    old = [task.file for task in table.scan().plan_files() if _newest_ms(table, task.file) < oldest_ms]
    if old:
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as producer:
            for each in old:
                producer.delete_data_file(each)
    return bool(old)


def _newest_ms(table: Table, file: DataFile) -> float:
    """Return the newest time by the file's statistics; infinity without statistics, so that the file stays."""
    field = table.schema().find_field("timestamp").field_id
    bound = (file.upper_bounds or {}).get(field)
    return float("inf") if bound is None else int.from_bytes(bound, "little", signed=True) / 1000


def forget_snapshots(table: Table, now_ms: int) -> bool:
    """Expire old snapshots; return whether there were any."""
    current, before = table.current_snapshot(), now_ms - KEPT_SNAPSHOTS_MS
    old = [each for each in table.snapshots() if each.timestamp_ms < before and each != current]
    if not old:
        return False
    if len(table.snapshots()) < SNAPSHOTS_MAX and old[0].timestamp_ms > before - FORGET_EVERY_MS:
        return False
    oldest = dt.datetime.fromtimestamp(before / 1000, dt.UTC).replace(tzinfo=None)
    table.maintenance.expire_snapshots().older_than(oldest).commit()
    return True


def totals(table: Table) -> dict[str, int]:
    snapshot = table.current_snapshot()
    summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    return {name: int(summary.get(name, 0)) for name in ("total-records", "total-files-size", "total-data-files")}


LOCK_SECONDS: Final = 60
"""How long a commit waits for a locked SQLite file. Python's default of 5 s is too short for a busy disk."""


class UnpooledSqlCatalog(SqlCatalog):
    """pyiceberg's, with a connection for each thing that is done."""

    @property
    def engine(self) -> Engine:
        return self._engine

    @engine.setter
    def engine(self, made: Engine) -> None:
        self._engine = create_engine(made.url, echo=made.echo, poolclass=NullPool)


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """The catalog of these properties; `name` unless they have another."""
    told = dict(properties)
    name, uri = told.pop("name", name), told.get("uri", "")
    if uri.startswith("sqlite") and "timeout" not in make_url(uri).query:
        patient = make_url(uri).update_query_dict({"timeout": str(LOCK_SECONDS)})
        told["uri"] = patient.render_as_string(hide_password=False)
    if told.get("type") == "sql":
        told["py-catalog-impl"] = f"{__name__}.{UnpooledSqlCatalog.__name__}"
        del told["type"]  # pyiceberg accepts only one of the two
    try:
        return load_catalog(name, **told)
    except OperationalError:
        # Two processes created the catalog's tables concurrently, and this one lost: they exist now.
        return load_catalog(name, **told)
