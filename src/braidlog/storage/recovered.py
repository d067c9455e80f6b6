"""What recovery hands over, and who may watch it.

Knows: the parts of an opened log. Refuses to know: how they were found (`recovery.py`), what is done with them (`partition.py`).
"""

from typing import Protocol

import msgspec

from braidlog.storage.damage import RecoveryReport
from braidlog.storage.segment import Segment
from braidlog.storage.slots import SlotPair
from braidlog.storage.state import PartitionState
from braidlog.storage.walk import Found


class Recovered(msgspec.Struct):
    """A partition ready for use: at least one segment, the last one active."""

    segments: list[Segment]
    state: PartitionState
    slots: SlotPair
    report: RecoveryReport


class Auditor(Protocol):
    """Who sees every batch that would stay, in order."""

    def begin(self, segment: Segment) -> None:
        """The batches of this segment follow, if it has any."""

    def take(self, segment: Segment, found: Found) -> str | None:
        """Why a whole batch must not stay; None to keep it."""
