"""What an inspection found out about one partition, for a report and for a repair."""

import msgspec

from braidlog.storage.recovery.recovery import Recovered
from braidlog.storage.segment.segment_files import Identity
from braidlog.storage.state.leader_epoch_file import Begun
from braidlog.storage.state.partition_state import StateImage
from braidlog.tools.findings import PartitionReport


class Inspection(msgspec.Struct, kw_only=True):
    """What was found, for a report and for a repair."""

    report: PartitionReport
    folder: str
    label: str
    """The folder's name inside of the data folder."""
    identity: Identity
    begun: Begun | None = None
    """Epochs that its checkpoints do not know of yet."""
    opened: Recovered | None = None
    """What recovery says of it. None: nothing is left to repair from, or another version's data must not be touched."""
    snapshots: dict[int, StateImage | None] = {}
    """Snapshots to write again; None: to remove, because what stood there cannot be told."""
    boundaries: set[int] = set()
    """Offsets where a checkpoint or a snapshot was taken."""
    rebuilt: StateImage | None = None
    """The state to write down in the place of a checkpoint that is not the log's."""
