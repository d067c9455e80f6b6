"""How many replicas a client wants to be asked; the numbers are those of Mayfly's header, and of each record of a slot."""

from enum import IntEnum


class Level(IntEnum):
    """What each promises is in ADR 31."""

    ONE = 1
    """Written: the leader has it. Read: any replica, which may be behind."""
    QUORUM = 2
    """Written: committed, by more than half of the replicas. Read: all that was acknowledged before."""
    ALL = 3
    """Written: every assigned replica has it. Read: as QUORUM, and every replica has it."""


LEVELS = {int(level): level for level in Level}
"""By the number that a client says."""
