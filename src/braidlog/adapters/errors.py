"""What a client of any dialect is told in words."""

from braidlog.model.errors import StorageFault

FULL = "this node's disk is full; records can be written again once there is room"
FAULT = "this node cannot read or write its files; its log says why, and `braid doctor` what to do"


def text_of(error: Exception) -> str:
    """The services' own words; of a fault of the disk nothing that names files."""
    if isinstance(error, StorageFault):
        return FULL if error.is_full else FAULT
    return str(error)
