"""What one file of a table is, and what one batch of a query wants of a table.

Knows: paths inside a table, counts, partition values. Refuses to know: table formats, Spark, bytes of Parquet.
Invariant: a path is relative to the table, with `/` between folders.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
# What Spark escapes in a partition's folder (ExternalCatalogUtils), so that Spark reads back what we write.
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f" + "".join(map(chr, range(1, 32))))


@dataclass(frozen=True)
class DataFile:
    """One Parquet file. `stats` is what Delta calls so: numRecords, minValues, maxValues, nullCount."""

    path: str
    rows: int
    bytes: int
    partition: dict[str, str | None] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)


class SinkTakenError(ValueError):
    """The sink's name is another's."""


@dataclass(frozen=True)
class Change:
    """What is asked of a table at once: these files, all or none, and once for each (sink, batch).

    Without a sink it is done as often as it is asked for; `overwrite` takes everything else out of the table.
    """

    files: tuple[DataFile, ...]
    schema: pa.Schema
    sink: str | None = None
    batch: int | None = None
    run: str | None = None
    """What numbered the batch, if it was not the sink itself: the query's id. Two that count from 0 must not share a name."""
    overwrite: bool = False
    merge_schema: bool = False
    partition_by: tuple[str, ...] = field(default=())

    @property
    def once(self) -> tuple[str, int] | None:
        """The sink and the batch, if the change has both."""
        return None if self.sink is None or self.batch is None else (self.sink, self.batch)

    def is_after(self, last: int | None, *, is_same_run: bool) -> bool:
        """Whether it is new to a table that has the batches of this sink up to `last`.

        One that another run has numbered is no replay, and to take it for one would lose its rows in silence.
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
    """`day=2026-11-15/kind=a%2Fb`, as Hive and Spark name folders; empty where nothing is partitioned."""
    return "/".join(f"{_escape(name)}={_escape(value or HIVE_NULL)}" for name, value in partition.items())


def _escape(text: str) -> str:
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in text)


_OURS = re.compile(r"part-(\d{13})-[0-9a-z]+\.parquet")


def new_path(folder: str, now_ms: int, token: str) -> str:
    """A name for a new file. It says when it was made: the age of what was left behind is read from its name."""
    name = f"part-{now_ms:013d}-{token}.parquet"
    return f"{folder}/{name}" if folder else name


def made_at_ms(name: str) -> int | None:
    """When a file of ours was made, by its name; None if it is another's."""
    found = _OURS.fullmatch(name)
    return None if found is None else int(found[1])
