"""Topic settings with their defaults and bounds.

One struct, so that a file, a flag and an admin request pass the same check.
"""

from enum import StrEnum
from typing import Any

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import BATCH_BYTES_MAX

UNLIMITED = -1


class Flush(StrEnum):
    """What an acknowledgement guarantees.

    ack: on the disk. Survives power loss. interval: in the page cache, on the disk within `flush_interval_ms`.
    Survives kill -9; power loss loses the last interval. os: in the page cache, on the disk when the window fills or
    the kernel writes it. Survives kill -9.
    """

    ACK = "ack"
    INTERVAL = "interval"
    OS = "os"


class TableForm(StrEnum):
    """How a topic's closed segments are exported as a table.

    off: not exported. raw: rows of an Iceberg table, with the records' fields as columns. json: as raw, plus a column
    for each field of values that are JSON objects. avro, protobuf: as json, by the schemas of the subject
    `<topic>-value`; values begin with a schema id.
    """

    OFF = "off"
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one topic. Where a limit is optional, `-1` means no limit."""

    flush: Flush = Flush.ACK
    flush_interval_ms: int = 1_000
    flush_window_bytes: int = 64 * 1024 * 1024
    """Start a sync after this many un-synced bytes, regardless of `flush`: dirty pages must not pile up."""
    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 64 * 1024
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    delete: bool = True
    """Delete old records by `retention_ms` and `retention_bytes`. Off: only compaction removes records."""
    compact: bool = False
    delete_retention_ms: int = 24 * 3600 * 1000
    """How long a tombstone stays readable, so that a slow consumer sees the deletion."""
    compaction_dirty_ratio: float = 0.5
    """Compact a partition when more than this share of its full segments is not compacted."""
    compaction_lag_min_ms: int = 0
    """Minimum age of a record, by its own time, before it may be compacted."""
    compaction_lag_max_ms: int = UNLIMITED
    """Maximum time until a record is compacted, regardless of the share of new records; -1: no limit."""
    batch_bytes_max: int = 16 * 1024 * 1024
    append_time: bool = False
    """Stamp records with the log's append time instead of the producer's time."""
    timestamp_after_max_ms: int = 3600 * 1000
    """How far a record's own time may be ahead of this node's clock; -1: no limit."""
    producer_expiry_ms: int = 24 * 3600 * 1000
    """How long a partition remembers an inactive producer's sequence numbers, to recognize its retries."""
    event_streams: bool = False
    """Records with a key and a version are events of a stream, and protocols with streams may append to them."""
    value_schema_check: bool = False
    """Accept only null values, and values that begin with the id of a schema of the subject `<topic>-value`."""

    table: TableForm = TableForm.OFF
    """Export the topic as a table, and its columns: off, raw, json, avro or protobuf."""
    table_lag_ms: int = 3600 * 1000
    """With a table: close a segment after this time even if it is not full, so that its records become rows; -1 is no
    limit.
    """
    table_retention_ms: int = UNLIMITED
    """Maximum age, by their own time, of the table's rows; -1: no limit. The log's retention does not affect them."""

    noted: dict[str, str] = {}
    """Settings of clients that have no effect in braidlog: stored and returned unchanged, under the client's names."""

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if not low <= value <= high:
                raise BrokerError(Reason.INVALID_SETTING, f"{name} must be {low} to {high}, not {value}")
        if self.compaction_lag_max_ms != UNLIMITED and self.compaction_lag_min_ms > self.compaction_lag_max_ms:
            raise BrokerError(
                Reason.INVALID_SETTING,
                f"compaction_lag_min_ms, {self.compaction_lag_min_ms}, exceeds compaction_lag_max_ms,  "
                f"{self.compaction_lag_max_ms}; lower the first or raise the second",
            )

    def altered(self, changes: dict[str, Any]) -> "TopicSettings":
        """Return the settings with some changed. Raises one error for all unknown names and invalid values."""
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
