"""What a check found, in words a person and a program can act on.

Knows: kinds, ranges of bytes and offsets, sentences. Refuses to know: how things are found or mended.
Invariant: a finding names one file and one range in it, what that means for the records, and what to do next.
"""

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How bad it is. A log with `note`s only is sound."""

    NOTE = "note"
    """What a crash leaves behind; opening the log puts it right and nothing acknowledged is lost."""
    FAULT = "fault"
    """Something is broken that can be made again from the rest: no record is lost."""
    DAMAGE = "damage"
    """Bytes that were durable are no longer what they were: records may be lost."""


class Kind(StrEnum):
    FOLDER = "folder"
    TOPIC = "topic"
    PARTITION = "partition"
    HEAD = "segment-head"
    MARK = "durable-mark"
    BATCH = "batch"
    RECORDS = "records"
    CUT = "segment-cut"
    MISSING = "segment-missing"
    FOREIGN = "segment-foreign"
    TAIL = "torn-tail"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    SNAPSHOT = "snapshot"
    LEFTOVER = "leftover"
    STRANGER = "stranger"
    UNREADABLE = "unreadable"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be. `file` is relative to the data folder; ranges are half-open."""

    severity: Severity
    kind: Kind
    file: str
    why: str
    meaning: str
    topic: str | None = None
    partition: int | None = None
    position: int = 0
    end: int = 0
    first_offset: int | None = None
    next_offset: int | None = None

    @property
    def offsets_lost(self) -> int:
        if self.severity is not Severity.DAMAGE or self.first_offset is None or self.next_offset is None:
            return 0
        return self.next_offset - self.first_offset


class PartitionReport(msgspec.Struct, kw_only=True):
    """What one partition holds, and what is wrong with it."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    segments: int
    batches: int
    records: int
    bytes_read: int
    findings: list[Finding]


def empty_report(topic: str, partition: int) -> PartitionReport:
    nothing = dict.fromkeys(("start_offset", "end_offset", "segments", "batches", "records", "bytes_read"), 0)
    return PartitionReport(topic=topic, partition=partition, findings=[], **nothing)


class VerifyReport(msgspec.Struct, kw_only=True):
    """What a check of a folder (or of one topic in it) found."""

    folder: str
    sound: bool
    bytes_read: int
    findings: list[Finding]
    """Findings that belong to no partition."""
    partitions: list[PartitionReport]
    next_command: str | None = None

    def all_findings(self) -> list[Finding]:
        return self.findings + [finding for partition in self.partitions for finding in partition.findings]


def is_sound(findings: list[Finding]) -> bool:
    return all(finding.severity is Severity.NOTE for finding in findings)
