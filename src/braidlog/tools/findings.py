"""Findings of a verification, for people and programs.

A finding names a file and a range in it, the effect on records, and the next step.
"""

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """Severity of a finding. A log with only `note`s is intact."""

    NOTE = "note"
    """Left by a crash; opening the log repairs it, and no acknowledged record is lost."""
    FAULT = "fault"
    """Broken, but can be rebuilt from other files: no record is lost."""
    DAMAGE = "damage"
    """Durable bytes have changed: records may be lost."""


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
    """A problem. `file` is relative to the data folder; ranges are half-open."""

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
    """Contents and findings of a partition."""

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
    """Result of verifying a folder, or one topic in it."""

    folder: str
    sound: bool
    bytes_read: int
    findings: list[Finding]
    """Findings outside of partitions."""
    partitions: list[PartitionReport]
    next_command: str | None = None

    def all_findings(self) -> list[Finding]:
        return self.findings + [finding for partition in self.partitions for finding in partition.findings]


def is_sound(findings: list[Finding]) -> bool:
    return all(finding.severity is Severity.NOTE for finding in findings)
