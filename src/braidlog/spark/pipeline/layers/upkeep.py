"""Upkeep of a pipeline's tables: merges small files, removes unused files.

Rows do not change, and a stream may write during it. Does not handle: rewriting a table.
"""

from braidlog.spark.lake import Report, compact
from braidlog.spark.pipeline.config import refusal
from braidlog.spark.pipeline.layers import tables
from braidlog.spark.pipeline.project import Project


def compact_tables(project: Project, only: frozenset[str], vacuum_seconds: float) -> dict[str, Report]:
    """Compact all tables of a project, or some; return a report per table."""
    there = _tables(project)
    if unknown := sorted(only - set(there)):
        raise refusal(f"unknown table {unknown[0]!r}; the tables are {', '.join(there) or 'none yet'}")
    return {name: _compact(project, name, vacuum_seconds) for name in there if not only or name in only}


def _tables(project: Project) -> list[str]:
    """Return the tables that exist."""
    if project.is_in_store:
        return sorted(name for name in project.table_names() if tables.paths(project, name))
    home = project.table("")
    return sorted(path.name for path in home.iterdir() if path.is_dir()) if home.is_dir() else []


def _compact(project: Project, table: str, vacuum_seconds: float) -> Report:
    at, settings = tables.place(project, table), project.pipeline.tables
    return compact(
        at.path,
        settings.format,
        settings.target_file_bytes,
        name=at.name,
        catalog=at.catalog,
        store=at.store,
        vacuum_age_seconds=vacuum_seconds,
    )
