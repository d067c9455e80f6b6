"""What an inspection found out about one partition, for a report and for a repair."""

import msgspec

from braidlog.storage.damage import Change
from braidlog.storage.epochs import EpochHistory
from braidlog.storage.head import Identity
from braidlog.storage.state import StateImage
from braidlog.tools.findings import Finding
from braidlog.tools.partition_files import SegmentFile
from braidlog.tools.scan import SegmentScan


class InspectedSegment(msgspec.Struct):
    """One segment: what it should be and what it is. `tail`: bytes that an opening cuts off."""

    file: SegmentFile
    scan: SegmentScan
    tail: Change | None = None

    @property
    def must_rewrite(self) -> bool:
        file = self.file
        return bool(file.head_fault or file.mark is None or self.scan.losses or self.scan.mends)


class MissingSegment(msgspec.Struct, frozen=True):
    """Offsets for which there is no file."""

    base_offset: int
    next_offset: int


class Inspection(msgspec.Struct, kw_only=True):
    """What was found, for a report and for a repair."""

    topic: str
    partition: int
    folder: str
    label: str
    """The folder's name inside of the data folder."""
    identity: Identity
    start_offset: int = 0
    end_offset: int = 0
    batches: int = 0
    records: int = 0
    bytes_read: int = 0
    findings: list[Finding] = []
    is_hopeless: bool = False
    """Nothing is left to repair from, or another version's data must not be touched."""
    segments: list[InspectedSegment] = []
    missing: list[MissingSegment] = []
    behind: list[int] = []
    """Bases of segments behind the end of the log: opening removes them."""
    leftovers: list[str] = []
    swaps: dict[int, int] = {}
    bad_swaps: list[int] = []
    snapshots: dict[int, StateImage | None] = {}
    """Snapshots to write again; None: to remove, because what stood there cannot be told."""
    epochs: EpochHistory | None = None
    checkpoint_ends: list[int] = []
    rebuilt: StateImage | None = None
    """The state to write down where no checkpoint is left."""
