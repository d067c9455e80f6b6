"""Describe damage to a partition and the changes that an opening makes, as values with a sentence each."""

from enum import Enum, auto

import msgspec

from braidlog.model.errors import StorageFault


class DamageKind(Enum):
    """The kind of damage to a partition."""

    BATCH = auto()
    """Bytes that are not a complete batch, or not the expected one."""
    HEAD = auto()
    """The header of a segment; its batches are read nevertheless."""
    MARK = auto()
    """The durable mark of a segment."""
    CUT = auto()
    """A segment ends before its durable mark."""
    MISSING = auto()
    """There is no file for these offsets."""
    FOREIGN = auto()
    """A valid header of another segment: nothing in the file is used."""
    VERSION = auto()
    """A valid header of an unknown version: nothing in the file is checked."""
    REWRITE = auto()
    """A finished rewrite is invalid; the segments that it was to replace are used."""


class Damage(msgspec.Struct, frozen=True):
    """Durable bytes that have changed. The offsets [first_offset, next_offset) cannot be read."""

    file: str
    position: int
    end: int
    first_offset: int
    next_offset: int
    why: str
    kind: DamageKind = DamageKind.BATCH
    mended: bytes = b""
    """Set by an audit: the batch's first bytes with one bit outside its checksum repaired; then nothing is lost."""

    def __str__(self) -> str:
        lost = self.next_offset - self.first_offset
        return (
            f"{self.file}: bytes {self.position} to {self.end} are damaged ({self.why}); "
            f"{lost} offsets from {self.first_offset} cannot be read"
        )


class ChangeKind(Enum):
    """What an opening does about the remains of a crash."""

    REMOVE_REWRITE = auto()
    """Remove an unfinished rewrite."""
    FINISH_REWRITE = auto()
    """Put a finished rewrite in place."""
    REMOVE_CREATION = auto()
    """Remove a segment whose creation never became durable."""
    REMOVE_RETAINED = auto()
    """Remove a segment below the log start."""
    REMOVE_BEHIND = auto()
    """Remove a segment behind the log end."""
    REMOVE_STRAY = auto()
    """Remove an index or a snapshot without a segment."""
    CUT = auto()
    """Truncate the log at `position`, to end at `offset`."""
    DERIVED = auto()
    """Rebuild something derived from the batches: an index, a checkpoint, the start of an epoch."""


class Change(msgspec.Struct, frozen=True):
    """A repair by an opening, or with `read_only` a proposed one. `file` is a name in the partition's folder."""

    kind: ChangeKind
    file: str
    why: str
    position: int = 0
    end: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"


class RecoveryReport(msgspec.Struct):
    """The findings and repairs of an opening, or with `read_only` the proposed ones."""

    clean_stop: bool = True
    is_unsaved: bool = False
    """The disk is full: the checkpoint could not record the opening and still states a clean stop."""
    changes: list[Change] = []
    torn_bytes: int = 0
    walked_bytes: int = 0
    damages: list[Damage] = []
    """Damage that cannot be repaired without loss: the operator decides, with `braid log repair`."""

    def forgive(self, fault: StorageFault) -> None:
        """Allow reads on a full disk after a clean stop.

        Everything is durable then, and the next write saves the state first.
        """
        self.is_unsaved = fault.is_full and self.clean_stop and not self.changes
        if not self.is_unsaved:
            raise fault

    @property
    def notes(self) -> list[str]:
        return [str(change) for change in self.changes]
