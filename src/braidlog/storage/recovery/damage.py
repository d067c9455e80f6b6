"""Describe damage to a partition and the changes that an opening makes, as values with a sentence each."""

from enum import Enum, auto

import msgspec

from braidlog.model.errors import StorageFault


class DamageKind(Enum):
    """The kind of damage to a partition."""

    BATCH = auto()
    """Bytes that are no whole batch, or not the one that belongs there."""
    HEAD = auto()
    """The head of a segment; its batches are read all the same."""
    MARK = auto()
    """The durable mark of a segment."""
    CUT = auto()
    """A segment ends before its durable mark."""
    MISSING = auto()
    """There is no file for these offsets."""
    FOREIGN = auto()
    """A whole head that says it is another segment's: nothing in the file is believed."""
    VERSION = auto()
    """A whole head of a version that is not known here: nothing in the file is judged."""
    REWRITE = auto()
    """A rewrite that waits for its place is not whole; what it was to replace is used."""


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
    """What an audit found: the first bytes of the batch with one bit outside its checksum put right, and nothing is lost."""

    def __str__(self) -> str:
        lost = self.next_offset - self.first_offset
        return (
            f"{self.file}: bytes {self.position} to {self.end} are damaged ({self.why}); "
            f"{lost} offsets from {self.first_offset} cannot be read"
        )


class ChangeKind(Enum):
    """What an opening does about the remains of a crash."""

    REMOVE_REWRITE = auto()
    """A rewrite was not finished: its file goes."""
    FINISH_REWRITE = auto()
    """A rewrite is whole: it takes its place."""
    REMOVE_CREATION = auto()
    """A segment whose creation never became durable goes."""
    REMOVE_RETAINED = auto()
    """A segment below the start of the log goes."""
    REMOVE_BEHIND = auto()
    """A segment behind the end of the log goes."""
    REMOVE_STRAY = auto()
    """An index or a snapshot beside no segment goes."""
    CUT = auto()
    """The log ends at `position`, where `offset` would be."""
    DERIVED = auto()
    """What is made from the batches is made again: an index, a checkpoint, the start of an epoch."""


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
    """The disk is full: that the partition is open is not in its checkpoint, which still tells of a clean stop."""
    changes: list[Change] = []
    torn_bytes: int = 0
    walked_bytes: int = 0
    damages: list[Damage] = []
    """Things that cannot be put right without losing something: for `braid log repair` and its owner to decide."""

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
