"""The messages between a node and the worker process that writes its tables.

A node without tables imports neither Parquet nor Iceberg.
"""

import msgspec

from braidlog.model.settings import TableForm
from braidlog.registry.framing import subject_of
from braidlog.storage.compaction.compaction_merge import Source
from braidlog.storage.state.transaction_index import Aborted


class TablePlace(msgspec.Struct, frozen=True):
    """The location of tables."""

    warehouse: str
    """A folder or a URI; each table has a folder in it."""
    catalog: dict[str, str]
    """pyiceberg's properties; empty: a SQLite file in the warehouse."""
    namespace: str


class Part(msgspec.Struct, frozen=True):
    """Closed segments of one partition whose transactions have all ended."""

    partition: int
    start: int
    """The log start offset: earlier records in the first segment are deleted."""
    sources: list[Source]
    aborted: list[Aborted]

    @property
    def end(self) -> int:
        return self.sources[-1].next_offset if self.sources else self.start


class Plan(msgspec.Struct, frozen=True):
    """Rows to add to a topic's table, and rows to remove. Without parts only the table's state is reported."""

    place: TablePlace
    topic: str
    topic_id: str
    form: TableForm
    parts: list[Part]
    now_ms: int
    retention_ms: int
    schemas: list[tuple[bytes, bytes | None]] = []
    """Keys and values of the log of schemas that concern the topic's subject, if the format has schemas."""

    @property
    def subject(self) -> str:
        return subject_of(self.topic)


class Turned(msgspec.Struct, frozen=True):
    """The current state of a topic's table."""

    offsets: dict[int, int] = {}
    """By partition: all records below this offset are in the table."""
    rows: int = 0
    bytes: int = 0
    files: int = 0
    metadata: str = ""
    """The location of the table's newest metadata file."""
    committed_ms: int = 0
    """When it was last changed; 0: never."""
    undecoded: int = 0
    """Rows whose value does not match the format."""
    missed: list[int] = []
    """Partitions whose segments were replaced or removed during the export: plan them again."""
    unread: list[int] = []
    """Partitions with unreadable segments."""
