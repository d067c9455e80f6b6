"""Request and result of a table export. Imports neither Parquet nor Iceberg: a node without tables needs neither."""

import msgspec

from braidlog.model.settings import TableForm
from braidlog.registry.framing import subject_of
from braidlog.storage.compaction.compaction_merge import Source
from braidlog.storage.state.transaction_index import Aborted


class TablePlace(msgspec.Struct, frozen=True):
    """The location of tables."""

    warehouse: str
    """Folder or URI; each table has a folder in it."""
    catalog: dict[str, str]
    """Catalog properties, as in pyiceberg; empty: an SQLite file in the warehouse."""
    namespace: str


class Part(msgspec.Struct, frozen=True):
    """Closed segments of one partition, all of whose transactions have ended."""

    partition: int
    start: int
    """The log's start offset: earlier records of the first segment are deleted."""
    sources: list[Source]
    aborted: list[Aborted]

    @property
    def end(self) -> int:
        return self.sources[-1].next_offset if self.sources else self.start


class Plan(msgspec.Struct, frozen=True):
    """Segments to export to one topic's table, and its retention. Without parts: only report the table's state."""

    place: TablePlace
    topic: str
    topic_id: str
    form: TableForm
    parts: list[Part]
    now_ms: int
    retention_ms: int
    schemas: list[tuple[bytes, bytes | None]] = []
    """Records of the schema log about the topic's subject, if the form has schemas: keys and values."""

    @property
    def subject(self) -> str:
        return subject_of(self.topic)


class Turned(msgspec.Struct, frozen=True):
    """The current state of a topic's table."""

    offsets: dict[int, int] = {}
    """Exported offset of each partition: all committed records below it are rows."""
    rows: int = 0
    bytes: int = 0
    files: int = 0
    metadata: str = ""
    """Location of the table's newest metadata file."""
    committed_ms: int = 0
    """Time of the last commit; 0: never."""
    undecoded: int = 0
    """Rows whose value does not have the topic's form."""
    missed: list[int] = []
    """Partitions whose segments were replaced or deleted during the export: plan them again."""
    unread: list[int] = []
    """Partitions with unreadable records."""
