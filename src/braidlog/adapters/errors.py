"""Error texts for clients of any dialect."""

from braidlog.model.errors import StorageFault

FULL = "this node's disk is full; retry after space was freed"
FULL_IN_DOUBT = "this node's disk is full; the request may have been stored: check before you retry"
FAULT = "this node cannot read or write its files; see its log, and run `braid doctor`"


def text_of(error: Exception) -> str:
    """Return the error's text; for a disk fault, a text without file names."""
    if isinstance(error, StorageFault):
        if error.is_full:
            return FULL_IN_DOUBT if error.left_remains else FULL
        return FAULT
    return str(error)
