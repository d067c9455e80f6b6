"""Values: one file of a table, and one change to a table.

Paths are relative to the table, with `/` between folders. Does not handle: table formats, Spark, Parquet.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
# Characters that Spark escapes in partition folders (ExternalCatalogUtils), so that Spark reads them back.
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f" + "".join(map(chr, range(1, 32))))


@dataclass(frozen=True)
class DataFile:
    """One Parquet file. `stats` in Delta's format: numRecords, minValues, maxValues, nullCount."""

    path: str
    rows: int
    bytes: int
    partition: dict[str, str | None] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)


class SinkTakenError(ValueError):
    """The sink's name belongs to another query."""


@dataclass(frozen=True)
class Change:
    """One change to a table: adds all these files or none, once for each (sink, batch).

    Without a sink it takes effect each time; `overwrite` removes all other rows.
    """

    files: tuple[DataFile, ...]
    schema: pa.Schema
    sink: str | None = None
    batch: int | None = None
    run: str | None = None
    """The query id that numbered the batch, if a sink name is set: two queries that count from 0 must not share a
    name."""
    overwrite: bool = False
    merge_schema: bool = False
    partition_by: tuple[str, ...] = field(default=())

    @property
    def once(self) -> tuple[str, int] | None:
        """Return the sink and the batch, if the change has both."""
        return None if self.sink is None or self.batch is None else (self.sink, self.batch)

    def is_after(self, last: int | None, *, is_same_run: bool) -> bool:
        """Return whether it is new to a table with this sink's batches up to `last`.

        A batch numbered by another run is not a replay; dropping it would silently lose its rows.
        """
        if self.once is None or last is None or self.once[1] > last:
            return True
        if not is_same_run:
            raise SinkTakenError(
                f"sink {self.once[0]!r} has the batches up to {last} of another query, and this is batch {self.once[1]} of query "
                f"{self.run}: a new checkpoint needs a new sinkId"
            )
        return False


def partition_folder(partition: dict[str, str | None]) -> str:
    """Return `day=2026-11-15/kind=a%2Fb`, as Hive and Spark name folders; empty without partitions."""
    return "/".join(f"{_escape(name)}={_escape(value or HIVE_NULL)}" for name, value in partition.items())


def _escape(text: str) -> str:
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in text)


_OURS = re.compile(r"part-(\d{13})-[0-9a-z]+\.parquet")


def new_path(folder: str, now_ms: int, token: str) -> str:
    """Return a name for a new file. It includes the creation time, from which the age of orphans is computed."""
    name = f"part-{now_ms:013d}-{token}.parquet"
    return f"{folder}/{name}" if folder else name


def made_at_ms(name: str) -> int | None:
    """Return the creation time in a file name of ours; None for other files."""
    match = _OURS.fullmatch(name)
    return None if match is None else int(match[1])
