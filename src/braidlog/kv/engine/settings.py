"""What can be set of the key-value store, with the defaults and the bounds.

Knows: names, defaults, what is out of range. Refuses to know: who reads them.
"""

from enum import StrEnum

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import Flush


class Eviction(StrEnum):
    """What happens when a mutation needs more memory than there is.

    refuse: it is refused with OUT_OF_MEMORY.
    lru: the keys that were not used for longest go until there is room.
    """

    REFUSE = "refuse"
    LRU = "lru"


class KeyValueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one store."""

    memory_bytes_max: int = 1024 * 1024 * 1024
    """What keys and values may take; 0 is no limit."""
    eviction: Eviction = Eviction.REFUSE
    flush: Flush = Flush.ACK
    flush_interval_ms: int = 1_000
    flush_window_bytes: int = 64 * 1024 * 1024
    snapshot_wal_bytes: int = 64 * 1024 * 1024
    """A snapshot is taken when the log has grown by so much since the last one, and by as much as the last one was large."""
    feed: bool = True
    """Write every mutation into the topic `__kv` as well."""
    feed_linger_ms: int = 50
    """How long a mutation may wait for others before it is told: each batch of the feed costs a sync that others wait behind."""

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if not low <= value <= high:
                raise BrokerError(Reason.INVALID_SETTING, f"{name} must be {low} to {high}, not {value}")


_BOUNDS = (
    ("memory_bytes_max", 0, 2**62),
    ("flush_interval_ms", 1, 3_600_000),
    ("flush_window_bytes", 4 * 1024, 2**40),
    ("snapshot_wal_bytes", 4 * 1024, 2**40),
    ("feed_linger_ms", 0, 60_000),
)
