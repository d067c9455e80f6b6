"""What is wrong with a partition, said so that a person can act on it.

Knows: ranges of bytes and offsets, and sentences. Refuses to know: how they were found, how they are mended.
"""

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


class RecoveryReport(msgspec.Struct):
    """What opening a partition found and did."""

    clean_stop: bool = True
    notes: list[str] = []
    """Things put right: a torn tail cut, an index rebuilt, an interrupted change finished."""
    torn_bytes: int = 0
    walked_bytes: int = 0
    damages: list[Damage] = []
    """Things that cannot be put right without losing something: for `braid log repair` and its owner to decide."""
