"""What a node asks of the process that writes its tables, and what comes back.

Knows: shapes. Refuses to know: Parquet, Iceberg; a node that has no table imports neither.
"""

import msgspec

from braidlog.model.settings import TableForm
from braidlog.registry.framing import subject_of
from braidlog.storage.compaction.compaction_merge import Source
from braidlog.storage.state.transaction_index import Aborted


class TablePlace(msgspec.Struct, frozen=True):
    """Where tables are."""

    warehouse: str
    """A folder or a URI; each table has a folder in it."""
    catalog: dict[str, str]
    """As pyiceberg calls its properties; empty: a file of SQLite in the warehouse."""
    namespace: str


class Part(msgspec.Struct, frozen=True):
    """Closed segments of one partition, all of whose transactions have ended."""

    partition: int
    start: int
    """Where the log begins: what is before it in the first segment is deleted."""
    sources: list[Source]
    aborted: list[Aborted]

    @property
    def end(self) -> int:
        return self.sources[-1].next_offset if self.sources else self.start


class Plan(msgspec.Struct, frozen=True):
    """Rows to be added to one topic's table, and what is to be let go. Without parts: say how the table is."""

    place: TablePlace
    topic: str
    topic_id: str
    form: TableForm
    parts: list[Part]
    now_ms: int
    retention_ms: int
    schemas: list[tuple[bytes, bytes | None]] = []
    """Keys and values of the log of schemas: those that concern the topic's subject, where the form has schemas."""

    @property
    def subject(self) -> str:
        return subject_of(self.topic)


class Turned(msgspec.Struct, frozen=True):
    """A topic's table as it is now."""

    offsets: dict[int, int] = {}
    """Of each partition: all below are rows."""
    rows: int = 0
    bytes: int = 0
    files: int = 0
    metadata: str = ""
    """Where the table's newest metadata file is."""
    committed_ms: int = 0
    """When it was last changed; 0: never."""
    undecoded: int = 0
    """Rows of it whose value is none of its form."""
    missed: list[int] = []
    """Partitions whose segments were exchanged or removed meanwhile: plan them anew."""
    unread: list[int] = []
    """Partitions that hold something that cannot be read."""
