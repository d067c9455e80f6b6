"""What every kind of table does for a sink and for upkeep, and the errors they share.

Knows: the questions. Refuses to know: any table format.
Invariant of every table: `commit` of one (sink, batch) changes the table once, however often, from wherever and with whichever
files it is asked for; what is refused, changes nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from braidlog.spark.lake.written import Change, DataFile

COMMIT_ATTEMPTS_MAX = 20
"""How often a commit that lost against another is decided anew."""


class LakeError(Exception):
    """The table cannot do what was asked."""


class NoTableError(LakeError):
    """There is no such table."""


@dataclass(frozen=True)
class Rewritten:
    """What a compaction did."""

    files_removed: int = 0
    files_added: int = 0
    bytes_removed: int = 0
    bytes_added: int = 0

    def __add__(self, other: "Rewritten") -> "Rewritten":
        return Rewritten(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


class Table(Protocol):
    @property
    def location(self) -> str:
        """The folder in which tasks put their files."""
        ...

    @property
    def stages(self) -> bool:
        """Whether tasks write under staged names, because whoever lists the folder reads what is in it."""
        ...

    @property
    def keeps_partition_columns(self) -> bool:
        """Whether the files have the partition columns too, or the folders' names alone."""
        ...

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str], *, merge_schema: bool) -> pa.Schema:
        """Make the table if it is not there; refuse what would not fit, before anything is written. Give the schema that the
        files are to have."""
        ...

    def commit(self, change: Change) -> bool:
        """Make the files part of the table; False if this sink's batch already was, and then they are removed."""
        ...

    def discard(self, files: Iterable[DataFile]) -> None:
        """Remove what an attempt wrote, but nothing that the table names: an abort may follow a commit that succeeded."""
        ...

    def paths(self) -> list[str]:
        """The files that are the table now, as whole paths: all of every change, or nothing of it."""
        ...

    def compact(self, target_file_bytes: int) -> Rewritten:
        """Put small files together. Rows stay as they are; a writer may go on meanwhile."""
        ...

    def vacuum(self, age_seconds: float) -> list[str]:
        """Remove files that are older than this and no part of the table; give their names."""
        ...
