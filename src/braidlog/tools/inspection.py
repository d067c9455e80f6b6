"""Result of inspecting a partition."""

import msgspec

from braidlog.storage.begun import Begun
from braidlog.storage.head import Identity
from braidlog.storage.recovered import Recovered
from braidlog.storage.state import StateImage
from braidlog.tools.findings import PartitionReport


class Inspection(msgspec.Struct, kw_only=True):
    """Result of inspecting a partition, for a report and for a repair."""

    report: PartitionReport
    folder: str
    label: str
    """Path of the partition's folder, relative to the data folder."""
    identity: Identity
    begun: Begun | None = None
    """Leader epochs newer than the checkpoints."""
    opened: Recovered | None = None
    """Result of recovery. None: nothing to repair from, or data of another version that must not change."""
    snapshots: dict[int, StateImage | None] = {}
    """Snapshots to rewrite; None: to remove, because the content is unknown."""
    boundaries: set[int] = set()
    """Offsets of checkpoints and snapshots."""
    rebuilt: StateImage | None = None
    """State that replaces a checkpoint that contradicts the log."""
