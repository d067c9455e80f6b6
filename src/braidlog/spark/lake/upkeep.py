"""Upkeep of a table: small files put together, what nobody needs removed. A writer may go on meanwhile.

Knows: what is done and what is told of it. Refuses to know: how each kind of table does it, when it should be done.
Invariant: the table's rows are the same before and after.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from braidlog.spark.lake.contract import Rewritten
from braidlog.spark.lake.errors import NoTableError
from braidlog.spark.lake.tables import open_table

TARGET_FILE_BYTES = 128 * 1024 * 1024
VACUUM_AGE_SECONDS = 7 * 24 * 3600
"""Longer than any batch takes, and than readers of an older state of the table go on reading it."""


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
    """Files that were removed from the disk: orphans of failed attempts, and what was replaced long enough ago."""


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
    """Put small files together, then vacuum (unless the age is None). Needs no Spark; `table` is delta or iceberg.

    Every reader sees the table as it was before or as it is after.
    """
    found = open_table(table, path, name=name, catalog=catalog, store=store)
    done = found.compact(target_file_bytes)
    gone = () if vacuum_age_seconds is None else tuple(found.vacuum(vacuum_age_seconds))
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
    """Remove files that are no part of the table and older than this: more than a batch takes, or a running batch fails."""
    found = open_table(table, path, name=name, catalog=catalog, store=store)
    return _report(path, table, name, Rewritten(), tuple(found.vacuum(age_seconds)))


def files(
    path: str | None,
    table: str,
    *,
    name: str | None = None,
    catalog: Mapping[str, str] | None = None,
    store: Mapping[str, str] | None = None,
) -> list[str]:
    """The files that are the table now: `spark.read.option("basePath", path).parquet(*files(path, "delta"))` reads it without a
    jar, and never a part of a change. None where there is no table."""
    try:
        return open_table(table, path, name=name, catalog=catalog, store=store).paths()
    except NoTableError:
        return []


def _report(path: str | None, table: str, name: str | None, done: Rewritten, gone: tuple[str, ...]) -> Report:
    return Report(table, path, name, done.files_removed, done.files_added, done.bytes_removed, done.bytes_added, gone)
