"""How an error travels: four kinds, never mixed.

| kind                            | type                    | ends in                                       |
|---------------------------------|-------------------------|-----------------------------------------------|
| the bytes are wrong             | `ProtocolError`         | the session answers if it can, then closes    |
| the request cannot be served    | `BrokerError(Reason.X)` | one total table per dialect, no default row   |
| the disk or the data is broken  | `StorageFault`          | the partition goes offline, loudly            |
| a bug in braidlog | `AssertionError` | the task crashes |

Each dialect has its own codes for the reasons in adapters/.
"""

import errno
from enum import Enum, auto

from braidlog.codec.errors import ProtocolError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

__all__ = [
    "BrokerError",
    "ElsewhereError",
    "NotCoordinatorError",
    "NotLeaderError",
    "NothingDoneError",
    "ProtocolError",
    "Reason",
    "StorageFault",
    "is_elsewhere",
]


class Reason(Enum):
    """Why a well-formed request cannot be served. Each dialect translates every member in one table."""

    INVALID_TOPIC_NAME = auto()
    TOPIC_EXISTS = auto()
    TOPIC_NOT_FOUND = auto()
    PARTITION_NOT_FOUND = auto()
    INVALID_PARTITION_COUNT = auto()
    INVALID_SETTING = auto()
    INVALID_RECORD = auto()
    INVALID_TIMESTAMP = auto()
    RECORD_TOO_LARGE = auto()
    OFFSET_OUT_OF_RANGE = auto()
    OFFSET_NOT_AVAILABLE = auto()
    STALE_LEADER_EPOCH = auto()
    OUT_OF_ORDER_SEQUENCE = auto()
    STALE_PRODUCER_EPOCH = auto()
    TOO_MANY_PRODUCERS = auto()
    INVALID_TRANSACTION_STATE = auto()
    FOLDER_IN_USE = auto()
    FOLDER_NOT_FOUND = auto()
    LOG_CLOSED = auto()
    TIMED_OUT = auto()
    NOT_LEADER = auto()
    NOT_COORDINATOR = auto()
    COORDINATOR_LOADING = auto()
    REPLICA_NOT_FOUND = auto()
    NOT_ENOUGH_REPLICAS = auto()
    ACKS_TIMED_OUT = auto()
    INVALID_ACKS = auto()
    GROUP_NOT_FOUND = auto()
    GROUP_NOT_EMPTY = auto()
    GROUP_FULL = auto()
    GROUP_SUBSCRIBED = auto()
    WRONG_GROUP_KIND = auto()
    INCONSISTENT_PROTOCOLS = auto()
    INVALID_SESSION_TIMEOUT = auto()
    MEMBER_ID_REQUIRED = auto()
    FENCED_INSTANCE = auto()
    METADATA_TOO_LARGE = auto()
    INVALID_GROUP = auto()
    MEMBER_NOT_FOUND = auto()
    STALE_GENERATION = auto()
    STALE_MEMBER_EPOCH = auto()
    UNRELEASED_INSTANCE = auto()
    UNSUPPORTED_ASSIGNOR = auto()
    INVALID_PATTERN = auto()
    PARTITION_NOT_ASSIGNED = auto()
    OFFSET_REGRESSION = auto()
    REBALANCE_IN_PROGRESS = auto()
    VERSION_CONFLICT = auto()
    STREAM_NOT_FOUND = auto()
    TRANSACTION_NOT_FOUND = auto()
    INVALID_TRANSACTION_TIMEOUT = auto()
    CONCURRENT_TRANSACTIONS = auto()
    PRODUCER_ID_MISMATCH = auto()
    USER_NOT_FOUND = auto()
    INVALID_USER = auto()
    RULE_NOT_SUPPORTED = auto()
    NOT_AUTHENTICATED = auto()
    NOT_AUTHORIZED = auto()
    QUOTA_EXCEEDED = auto()
    UNAVAILABLE = auto()
    KEY_NOT_FOUND = auto()
    INVALID_KEY = auto()
    KEY_TOO_LONG = auto()
    VALUE_TOO_LARGE = auto()
    WRONG_TYPE = auto()
    NOT_A_NUMBER = auto()
    NUMBER_OVERFLOW = auto()
    OUT_OF_MEMORY = auto()


class BrokerError(Exception):
    """A well-formed request cannot be served, for this reason."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ElsewhereError(BrokerError):
    """Another node serves the request; the subclass says which role that node has."""


class NotLeaderError(ElsewhereError):
    """Another node leads this partition. A dialect can send its name to the client."""

    def __init__(self, topic: str, number: int, message: str) -> None:
        super().__init__(Reason.NOT_LEADER, message)
        self.topic = topic
        self.number = number


class NotCoordinatorError(ElsewhereError):
    """Another node coordinates this shard, or this node is still loading it."""

    def __init__(self, shard: int, message: str, *, is_loading: bool = False) -> None:
        super().__init__(Reason.COORDINATOR_LOADING if is_loading else Reason.NOT_COORDINATOR, message)
        self.shard = shard


class NothingDoneError(BrokerError):
    """The only node that can serve the request was not reached, or it rejected the request. A caller that knows
    another node may retry there.
    """


def is_elsewhere(error: BrokerError) -> bool:
    """Return whether nothing was done because another node serves the request, or this node will shortly."""
    return isinstance(error, NotLeaderError) or error.reason in (Reason.NOT_COORDINATOR, Reason.COORDINATOR_LOADING)


class StorageFault(Exception):  # noqa: N818 - "fault" is the usual term for disks
    """The disk failed, or the data differs from what was written. Never retried, never swallowed."""

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message if path is None else f"{path}: {message}")
        self.path = path
        self.place = ""
        """The partition, `orders/0`, if known."""
        self.left_remains = False
        """Whether bytes of the failed write may be in a file."""

    def again(self) -> "StorageFault":
        """Return a copy of the fault to raise: raising a stored exception would keep all frames it passed through
        alive.
        """
        same = StorageFault(str(self))
        same.path, same.place, same.__cause__ = self.path, self.place, self.__cause__
        return same

    @property
    def is_full(self) -> bool:
        """Return whether the disk is full: nothing is damaged, and space can be freed."""
        return isinstance(self.__cause__, OSError) and self.__cause__.errno in _FULL
