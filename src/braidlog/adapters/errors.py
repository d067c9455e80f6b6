"""Error texts of all dialects, and families of reasons that a dialect may translate to one code.

A reason without a family needs a row in every dialect's table. Does not handle: codes.
"""

from braidlog.model.errors import Reason, StorageFault

FULL = "this node's disk is full; retry after space was freed"
FULL_IN_DOUBT = "this node's disk is full; the request may have been stored: check before you retry"
FAULT = "this node cannot read or write its files; see its log, and run `braid doctor`"

GROUPS = (
    Reason.GROUP_NOT_FOUND,
    Reason.GROUP_NOT_EMPTY,
    Reason.GROUP_FULL,
    Reason.GROUP_SUBSCRIBED,
    Reason.WRONG_GROUP_KIND,
    Reason.INCONSISTENT_PROTOCOLS,
    Reason.INVALID_SESSION_TIMEOUT,
    Reason.MEMBER_ID_REQUIRED,
    Reason.FENCED_INSTANCE,
    Reason.METADATA_TOO_LARGE,
    Reason.INVALID_GROUP,
    Reason.MEMBER_NOT_FOUND,
    Reason.STALE_GENERATION,
    Reason.STALE_MEMBER_EPOCH,
    Reason.UNRELEASED_INSTANCE,
    Reason.UNSUPPORTED_ASSIGNOR,
    Reason.INVALID_PATTERN,
    Reason.PARTITION_NOT_ASSIGNED,
    Reason.OFFSET_REGRESSION,
    Reason.REBALANCE_IN_PROGRESS,
)
"""Reasons about groups, their members and committed offsets."""
PRODUCERS = (
    Reason.OUT_OF_ORDER_SEQUENCE,
    Reason.STALE_PRODUCER_EPOCH,
    Reason.INVALID_TRANSACTION_STATE,
    Reason.TRANSACTION_NOT_FOUND,
    Reason.INVALID_TRANSACTION_TIMEOUT,
    Reason.CONCURRENT_TRANSACTIONS,
    Reason.PRODUCER_ID_MISMATCH,
)
"""Reasons about idempotent producers and transactions."""
STREAMS = (
    Reason.VERSION_CONFLICT,
    Reason.STREAM_NOT_FOUND,
)
"""Reasons about event streams and writes at a version."""
USERS = (
    Reason.USER_NOT_FOUND,
    Reason.INVALID_USER,
    Reason.RULE_NOT_SUPPORTED,
)
"""Reasons about users and rules."""
KEYS = (
    Reason.KEY_NOT_FOUND,
    Reason.INVALID_KEY,
    Reason.KEY_TOO_LONG,
    Reason.WRONG_TYPE,
    Reason.NOT_A_NUMBER,
    Reason.NUMBER_OVERFLOW,
)
"""Reasons about keys and their values."""


def text_of(error: Exception) -> str:
    """Return the error's text; for a disk fault, a text without file names."""
    if isinstance(error, StorageFault):
        if error.is_full:
            return FULL_IN_DOUBT if error.left_remains else FULL
        return FAULT
    return str(error)
