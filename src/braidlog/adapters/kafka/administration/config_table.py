"""A topic's settings under Kafka's names.

One table: Kafka's name, our setting, and how a value is written. It includes settings without effect, which are
stored and returned, and settings with one fixed value.
Invariant: a name that is not in the table is rejected. A fixed setting may be "set" only to its value: tools that
write back what they read must not fail.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from os.path import commonprefix
from typing import Any, NamedTuple

from braidlog.broker.topic_settings import NOTED, Setting
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import UNLIMITED, TableForm

ALIKE_CHARACTERS = 4
"""Length of a name's correct beginning that is needed for a suggestion."""

_LONG_MAX = str(2**63 - 1)
NOTED_CHARS_MAX = 1000
THROTTLED_CHARS_MAX = 100_000
"""Maximum length of a list of partitions with their nodes, six characters or more each, which
`kafka-reassign-partitions` writes and removes.
"""
_RATIO_CHARS_MAX = 20


class Kind(IntEnum):
    """Kafka's numbers for types of settings."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    """Kafka's numbers for the source of a value."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class Row(NamedTuple):
    """One of Kafka's settings: our settings behind it, how a value is shown, and how a text is parsed."""

    name: str
    kind: Kind
    ours: tuple[str, ...]
    show: Callable[[Mapping[str, Any]], str]
    parse: Callable[[str], dict[str, Any]]
    text: str

    @property
    def is_fixed(self) -> bool:
        return not self.ours


def _number(name: str, kind: Kind, ours: str, text: str) -> Row:
    def parse(value: str) -> dict[str, Any]:
        try:
            return {ours: int(value)}
        except ValueError:
            raise _wrong(name, value, "a whole number") from None

    return Row(name, kind, (ours,), lambda values: str(values[ours]), parse, text)


def _longest(name: str, ours: str, low: int, text: str) -> Row:
    """A time without an upper limit: Kafka writes that as the largest number."""

    def parse(value: str) -> dict[str, Any]:
        if not value.isascii() or not value.isdigit() or int(value) < low:
            raise _wrong(name, value, f"a whole number of {low} or more")
        return {ours: UNLIMITED if value == _LONG_MAX else int(value)}

    def show(values: Mapping[str, Any]) -> str:
        return _LONG_MAX if values[ours] == UNLIMITED else str(values[ours])

    return Row(name, Kind.LONG, (ours,), show, parse, text)


def _ratio(name: str, ours: str, text: str) -> Row:
    def parse(value: str) -> dict[str, Any]:
        if not _CHECKS[Kind.DOUBLE](value) or len(value) > _RATIO_CHARS_MAX:
            raise _wrong(name, value, "a number of 0 to 1")
        return {ours: float(value)}

    return Row(name, Kind.DOUBLE, (ours,), lambda values: str(float(values[ours])), parse, text)


def _word(name: str, ours: str, words: Mapping[str, Any], text: str, kind: Kind = Kind.STRING) -> Row:
    def parse(value: str) -> dict[str, Any]:
        if value not in words:
            raise _wrong(name, value, "one of " + ", ".join(words))
        return {ours: words[value]}

    shown = {value: word for word, value in words.items()}
    return Row(name, kind, (ours,), lambda values: shown[values[ours]], parse, text)


def _fixed(name: str, kind: Kind, value: str, why: str) -> Row:
    def parse(wanted: str) -> dict[str, Any]:
        if wanted.lower() != value:
            raise BrokerError(
                Reason.INVALID_SETTING, f"{name} is always {value} on this server, not {wanted[:60]!r}: {why}"
            )
        return {}

    return Row(name, kind, (), lambda _: value, parse, "fixed value")


def _without_effect(name: str, kind: Kind, default: str, *words: str, chars_max: int = NOTED_CHARS_MAX) -> Row:
    """A setting without effect: stored unchanged if Kafka would accept it."""
    check = _CHECKS.get(kind, bool if kind is Kind.STRING else _is_any)

    def parse(value: str) -> dict[str, Any]:
        if not check(value) or (words and value not in words) or len(value) > chars_max:
            raise _wrong(name, value, "one of " + ", ".join(words) if words else _WORDS.get(kind, "a short text"))
        return {NOTED: {name: None if value == default else value}}

    return Row(name, kind, (NOTED,), lambda values: values[NOTED].get(name, default), parse, "stored, without effect")


def _is_any(_: str) -> bool:
    return True


def _is_number(value: str) -> bool:
    return value.removeprefix("-").isdecimal() and abs(int(value)) < 2**63


_CHECKS: dict[Kind, Callable[[str], bool]] = {
    Kind.BOOLEAN: lambda value: value in ("true", "false"),
    Kind.INT: _is_number,
    Kind.LONG: _is_number,
    Kind.DOUBLE: lambda value: value.replace(".", "", 1).isdecimal(),
}
_WORDS = {
    Kind.BOOLEAN: "true or false",
    Kind.INT: "a whole number",
    Kind.LONG: "a whole number",
    Kind.DOUBLE: "a number",
}


def _show_policy(values: Mapping[str, Any]) -> str:
    return ",".join(word for word in ("compact", "delete") if values[word])


def _parse_policy(value: str) -> dict[str, Any]:
    words = split(value)
    if not words <= {"compact", "delete"}:
        raise _wrong("cleanup.policy", value, "a list of compact, delete")
    return {"compact": "compact" in words, "delete": "delete" in words}


def split(value: str) -> set[str]:
    return {word.strip() for word in value.split(",") if word.strip()}


def _wrong(name: str, value: str, wanted: str) -> BrokerError:
    return BrokerError(Reason.INVALID_SETTING, f"{name} is {wanted}, not {value[:60]!r}")


_BOOLEAN = {"true": True, "false": False}
ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row(
            "cleanup.policy",
            Kind.LIST,
            ("compact", "delete"),
            _show_policy,
            _parse_policy,
            "how old records are removed",
        ),
        _number("retention.ms", Kind.LONG, "retention_ms", "maximum age of records; -1: no limit"),
        _number("retention.bytes", Kind.LONG, "retention_bytes", "maximum size of a partition; -1: no limit"),
        _number("segment.bytes", Kind.INT, "segment_bytes", "maximum size of a segment's file"),
        _number("segment.ms", Kind.LONG, "segment_ms", "maximum time that a segment is active"),
        _number("index.interval.bytes", Kind.INT, "index_interval_bytes", "bytes between two entries of the index"),
        _number("delete.retention.ms", Kind.LONG, "delete_retention_ms", "how long a tombstone stays readable"),
        _number("max.message.bytes", Kind.INT, "batch_bytes_max", "maximum size of a batch"),
        _number("min.insync.replicas", Kind.INT, "min_in_sync", "in-sync replicas that acks=all needs"),
        _number("flush.ms", Kind.LONG, "flush_interval_ms", "with braidlog.flush=interval: time between two syncs"),
        _word(
            "message.timestamp.type",
            "append_time",
            {"CreateTime": False, "LogAppendTime": True},
            "source of a record's time: producer or log append",
        ),
        _longest(
            "message.timestamp.after.max.ms",
            "timestamp_after_max_ms",
            0,
            "how far ahead of this node's clock a record's own time may be",
        ),
        _number(
            "min.compaction.lag.ms", Kind.LONG, "compaction_lag_min_ms", "minimum age of a record before compaction"
        ),
        _longest("max.compaction.lag.ms", "compaction_lag_max_ms", 1, "maximum time until a record is compacted"),
        _ratio(
            "min.cleanable.dirty.ratio", "compaction_dirty_ratio", "the share of new bytes at which compaction is due"
        ),
        _word(
            "braidlog.flush",
            "flush",
            {"ack": "ack", "interval": "interval", "os": "os"},
            "what an acknowledgement guarantees: synced to disk, synced soon, written to the page cache",
        ),
        _number(
            "braidlog.flush.window.bytes",
            Kind.LONG,
            "flush_window_bytes",
            "un-synced bytes after which a sync starts regardless",
        ),
        _number(
            "braidlog.producer.expiry.ms",
            Kind.LONG,
            "producer_expiry_ms",
            "how long an inactive producer is remembered",
        ),
        _word(
            "braidlog.table",
            "table",
            {word: word for word in TableForm},
            "closed segments are exported as rows of an Iceberg table: off, raw (the records' fields), json (the values' fields "
            "too), avro, protobuf (those by the schemas of the topic's subject)",
        ),
        _number(
            "braidlog.table.lag.ms", Kind.LONG, "table_lag_ms", "maximum time until a segment is closed and exported"
        ),
        _number("braidlog.table.retention.ms", Kind.LONG, "table_retention_ms", "maximum age of rows; -1: no limit"),
        _word("braidlog.event.streams", "event_streams", _BOOLEAN, "records are events of streams", Kind.BOOLEAN),
        *(
            _word(
                name, "value_schema_check", _BOOLEAN, "values name a schema of the subject <topic>-value", Kind.BOOLEAN
            )
            for name in ("confluent.value.schema.validation", "braidlog.value.schema.check")  # the last one is ours
        ),
        _without_effect(
            "compression.type", Kind.STRING, "producer", "producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"
        ),
        _without_effect("compression.gzip.level", Kind.INT, "-1"),
        _without_effect("compression.lz4.level", Kind.INT, "9"),
        _without_effect("compression.zstd.level", Kind.INT, "3"),
        _without_effect("file.delete.delay.ms", Kind.LONG, "60000"),
        _without_effect("flush.messages", Kind.LONG, _LONG_MAX),
        _without_effect("follower.replication.throttled.replicas", Kind.LIST, "", chars_max=THROTTLED_CHARS_MAX),
        _without_effect("leader.replication.throttled.replicas", Kind.LIST, "", chars_max=THROTTLED_CHARS_MAX),
        _without_effect("local.retention.bytes", Kind.LONG, "-2"),
        _without_effect("local.retention.ms", Kind.LONG, "-2"),
        _without_effect("message.downconversion.enable", Kind.BOOLEAN, "true"),
        _without_effect("message.format.version", Kind.STRING, "3.0-IV1"),
        _without_effect("message.timestamp.before.max.ms", Kind.LONG, _LONG_MAX),
        _without_effect("message.timestamp.difference.max.ms", Kind.LONG, _LONG_MAX),
        _without_effect("preallocate", Kind.BOOLEAN, "false"),
        _without_effect("remote.log.copy.disable", Kind.BOOLEAN, "false"),
        _without_effect("remote.log.delete.on.disable", Kind.BOOLEAN, "false"),
        _without_effect("segment.index.bytes", Kind.INT, "10485760"),
        _without_effect("segment.jitter.ms", Kind.LONG, "0"),
        _fixed(
            "unclean.leader.election.enable",
            Kind.BOOLEAN,
            "false",
            "a replica that lacks acknowledged records is never elected automatically",
        ),
        _fixed(
            "remote.storage.enable",
            Kind.BOOLEAN,
            "false",
            "records are stored only on local disks, as long as retention.ms and retention.bytes allow",
        ),
    )
}


class Shown(NamedTuple):
    """One setting in an answer."""

    row: Row
    value: str
    default: str
    source: Source


def show(settings: Mapping[str, Setting]) -> list[Shown]:
    """Return all of Kafka's settings of a topic."""
    values = {name: setting.value for name, setting in settings.items()}
    defaults = {name: setting.default for name, setting in settings.items()}
    return [_show(row, row.show(values), row.show(defaults)) for row in ROWS.values()]


def _show(row: Row, value: str, default: str) -> Shown:
    return Shown(row, value, default, Source.DEFAULT if value == default else Source.TOPIC)


def find(name: str) -> Row:
    row = ROWS.get(name)
    if row is None:
        near = _begin_alike(name[:60])
        meant = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(ROWS)}"
        raise BrokerError(Reason.INVALID_SETTING, f"unknown topic setting {name[:60]!r}; {meant}")
    return row


def _begin_alike(name: str) -> list[str]:
    """Return the settings with the longest common prefix with `name`: cheap, because any client may send thousands."""
    shared = {each: len(commonprefix((each, name))) for each in ROWS}  # noqa: RUF071 - characters are meant
    longest = max(shared.values())
    return [each for each, length in shared.items() if length == longest] if longest >= ALIKE_CHARACTERS else []


def parse(pairs: Iterable[tuple[str, str | None]]) -> tuple[dict[str, Any], list[str]]:
    """Return Kafka's (name, value) pairs as changes of ours, and the settings to reset to their default (a value of
    None).
    """
    changes: dict[str, Any] = {}
    resets: list[str] = []
    for name, value in pairs:
        row = find(name)
        if row.ours == (NOTED,):
            noted = {name: None} if value is None else row.parse(value.strip())[NOTED]
            changes[NOTED] = {**changes.get(NOTED, {}), **noted}
        elif value is None:
            resets += row.ours
        else:
            changes |= row.parse(value.strip())
    return changes, resets
