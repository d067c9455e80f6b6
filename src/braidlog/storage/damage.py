"""What recovery finds in a partition: damage, and what an opening puts right, as values with a sentence each."""

from enum import Enum, auto

import msgspec


class Damage(msgspec.Struct, frozen=True):
    """Bytes that were durable and are no longer what they were. Offsets [first_offset, next_offset) cannot be read."""

    file: str
    position: int
    end: int
    first_offset: int
    next_offset: int
    why: str

    def __str__(self) -> str:
        lost = self.next_offset - self.first_offset
        return (
            f"{self.file}: bytes {self.position} to {self.end} are damaged ({self.why}); "
            f"{lost} offsets from {self.first_offset} cannot be read"
        )


class ChangeKind(Enum):
    """What an opening does about what a crash left."""

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
    CUT = auto()
    """The log ends at `position`, where `offset` would be."""
    DERIVED = auto()
    """What is made from the batches is made again: an index, a checkpoint, the start of an epoch."""


class Change(msgspec.Struct, frozen=True):
    """Something an opening puts right, or with `read_only` would. `file` is a name in the partition's folder."""

    kind: ChangeKind
    file: str
    why: str
    position: int = 0
    end: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"


class RecoveryReport(msgspec.Struct):
    """What opening a partition found and did, or with `read_only` would do."""

    clean_stop: bool = True
    changes: list[Change] = []
    torn_bytes: int = 0
    walked_bytes: int = 0
    damages: list[Damage] = []
    """Things that cannot be put right without losing something: for `braid log repair` and its owner to decide."""

    @property
    def notes(self) -> list[str]:
        return [str(change) for change in self.changes]
