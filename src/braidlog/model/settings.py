"""What can be set per topic, with the defaults and the bounds.

Knows: names, defaults, what is out of range. Refuses to know: who reads them. One struct, so that a file, a flag and an
admin request all meet the same check.
"""

from enum import StrEnum
from typing import Any

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import BATCH_BYTES_MAX

UNLIMITED = -1


class Flush(StrEnum):
    """What an acknowledgement promises.

    ack: on the disk. Survives power loss.
    interval: in the page cache, on the disk within `flush_interval_ms`. Survives kill -9; power loss takes the last interval.
    os: in the page cache, on the disk when the window fills or the kernel likes. Survives kill -9.
    """

    ACK = "ack"
    INTERVAL = "interval"
    OS = "os"


class TableForm(StrEnum):
    """What becomes of a topic's closed segments beside the log.

    off: nothing.
    raw: rows of an Iceberg table, with the records' fields as columns.
    json: the same, and a column for each field of values that are JSON objects.
    avro, protobuf: the same by the schemas of the subject `<topic>-value`, whose ids stand before the values.
    """

    OFF = "off"
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one topic. `-1` means no limit where a limit may be absent."""

    flush: Flush = Flush.ACK
    flush_interval_ms: int = 1_000
    flush_window_bytes: int = 64 * 1024 * 1024
    """Un-synced bytes after which a sync is started whatever `flush` says: dirty pages must not pile up."""
    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 64 * 1024
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    delete: bool = True
    """Let old records go, as `retention_ms` and `retention_bytes` say. Off: only compaction takes any away."""
    compact: bool = False
    delete_retention_ms: int = 24 * 3600 * 1000
    """How long a tombstone stays readable, so that a slow reader learns of the deletion."""
    compaction_dirty_ratio: float = 0.5
    """A partition is compacted when more than this share of its full segments has not been."""
    compaction_lag_min_ms: int = 0
    """How old, by its own time, a record is before it may be compacted away."""
    compaction_lag_max_ms: int = UNLIMITED
    """After how long a record is compacted at the latest, whatever the share of new ones; -1 is no limit."""
    batch_bytes_max: int = 16 * 1024 * 1024
    append_time: bool = False
    """Stamp records with the log's time instead of the writer's."""
    timestamp_after_max_ms: int = 3600 * 1000
    """How far ahead of this node's clock a record's own time may be; -1 is no limit."""
    producer_expiry_ms: int = 24 * 3600 * 1000
    """How long a partition remembers what a silent producer wrote last, to recognise its retries."""
    event_streams: bool = False
    """Records with a key and a version are events of a stream, and doors that know streams may append to them."""
    value_schema_check: bool = False
    """Take only values that begin with the id of a schema of the subject `<topic>-value`, or are null."""

    table: TableForm = TableForm.OFF
    """Whether the topic is a table too, and what becomes columns of it: off, raw, json, avro or protobuf."""
    table_lag_ms: int = 3600 * 1000
    """With a table: a segment is closed after so long, full or not, so that its records become rows; -1 is no limit."""
    table_retention_ms: int = UNLIMITED
    """How old, by their own time, rows of the table may get; -1 is no limit. The log's retention does not touch them."""

    noted: dict[str, str] = {}
    """What a door's clients set and this node has no use for: kept and shown as they said it, by their own names for it."""

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if not low <= value <= high:
                raise BrokerError(Reason.INVALID_SETTING, f"{name} must be {low} to {high}, not {value}")
        if self.compaction_lag_max_ms != UNLIMITED and self.compaction_lag_min_ms > self.compaction_lag_max_ms:
            raise BrokerError(
                Reason.INVALID_SETTING,
                f"compaction_lag_min_ms, {self.compaction_lag_min_ms}, is more than compaction_lag_max_ms, "
                f"{self.compaction_lag_max_ms}: what must be compacted by then could not be",
            )

    def altered(self, changes: dict[str, Any]) -> "TopicSettings":
        """The same settings with some changed; unknown names and bad values are refused together with a reason."""
        return settings_from({**msgspec.to_builtins(self), **changes})


def settings_from(values: dict[str, Any]) -> TopicSettings:
    """Build settings from plain values: a parsed file, a request, keyword arguments."""
    try:
        return msgspec.convert(values, TopicSettings)
    except msgspec.ValidationError as error:
        known = ", ".join(TopicSettings.__struct_fields__)
        raise BrokerError(Reason.INVALID_SETTING, f"{error}; a topic's settings are: {known}") from error


_FOREVER = 2**62
_BOUNDS = (
    ("flush_interval_ms", 1, 3_600_000),
    ("flush_window_bytes", 4 * 1024, 2**40),
    ("segment_bytes", 4 * 1024, 2**31 - 1),
    ("segment_ms", 1, _FOREVER),
    ("index_interval_bytes", 256, 64 * 1024 * 1024),
    ("retention_ms", UNLIMITED, _FOREVER),
    ("retention_bytes", UNLIMITED, _FOREVER),
    ("delete_retention_ms", 0, _FOREVER),
    ("compaction_dirty_ratio", 0.0, 1.0),
    ("compaction_lag_min_ms", 0, _FOREVER),
    ("compaction_lag_max_ms", UNLIMITED, _FOREVER),
    ("batch_bytes_max", 1024, BATCH_BYTES_MAX),
    ("timestamp_after_max_ms", UNLIMITED, _FOREVER),
    ("producer_expiry_ms", 1, _FOREVER),
    ("table_lag_ms", UNLIMITED, _FOREVER),
    ("table_retention_ms", UNLIMITED, _FOREVER),
)
