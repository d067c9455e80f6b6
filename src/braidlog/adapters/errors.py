"""What a client of any dialect is told in words."""

from braidlog.model.errors import StorageFault

FULL = "this node's disk is full; records can be written again once there is room"
FULL_IN_DOUBT = "this node's disk is full; what was sent may be stored all the same: look before it is sent again"
FAULT = "this node cannot read or write its files; its log says why, and `braid doctor` what to do"


def text_of(error: Exception) -> str:
    """The services' own words; of a fault of the disk nothing that names files."""
    if isinstance(error, StorageFault):
        if error.is_full:
            return FULL_IN_DOUBT if error.left_remains else FULL
        return FAULT
    return str(error)
