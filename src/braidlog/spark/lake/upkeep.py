"""Table upkeep: merges small files, removes unused files. Writers may commit during it.

The table's rows are the same before and after. Does not handle: scheduling, table formats.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from braidlog.spark.lake.contract import Rewritten
from braidlog.spark.lake.errors import NoTableError
from braidlog.spark.lake.tables import open_table

TARGET_FILE_BYTES = 128 * 1024 * 1024
VACUUM_AGE_SECONDS = 7 * 24 * 3600
"""Longer than any batch takes, and longer than readers use an older state of the table."""


@dataclass(frozen=True)
class Report:
    """What was done to a table."""

    table: str
    path: str | None
    name: str | None
    files_removed: int
    files_added: int
    bytes_removed: int
    bytes_added: int
    vacuumed: tuple[str, ...]
    """Files removed from the disk: orphans of failed attempts, and files that were replaced long enough ago."""


def compact(
    path: str | None,
    table: str,
    target_file_bytes: int = TARGET_FILE_BYTES,
    *,
    name: str | None = None,
    catalog: Mapping[str, str] | None = None,
    store: Mapping[str, str] | None = None,
    vacuum_age_seconds: float | None = VACUUM_AGE_SECONDS,
) -> Report:
    """Merge small files, then vacuum (unless the age is None). Needs no Spark; `table` is delta or iceberg.

    Every reader sees the table as before or as after.
    """
    opened = open_table(table, path, name=name, catalog=catalog, store=store)
    done = opened.compact(target_file_bytes)
    gone = () if vacuum_age_seconds is None else tuple(opened.vacuum(vacuum_age_seconds))
    return _report(path, table, name, done, gone)


def vacuum(
    path: str | None,
    table: str,
    age_seconds: float = VACUUM_AGE_SECONDS,
    *,
    name: str | None = None,
    catalog: Mapping[str, str] | None = None,
    store: Mapping[str, str] | None = None,
) -> Report:
    """Remove files that are not part of the table and older than this. The age must exceed the duration of a batch,
    or it fails."""
    opened = open_table(table, path, name=name, catalog=catalog, store=store)
    return _report(path, table, name, Rewritten(), tuple(opened.vacuum(age_seconds)))


def files(
    path: str | None,
    table: str,
    *,
    name: str | None = None,
    catalog: Mapping[str, str] | None = None,
    store: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the table's current files: `spark.read.option("basePath", path).parquet(*files(path, "delta"))` reads it
    without a jar, and sees complete commits only. Empty if there is no table."""
    try:
        return open_table(table, path, name=name, catalog=catalog, store=store).paths()
    except NoTableError:
        return []


def _report(path: str | None, table: str, name: str | None, done: Rewritten, gone: tuple[str, ...]) -> Report:
    return Report(table, path, name, done.files_removed, done.files_added, done.bytes_removed, done.bytes_added, gone)
