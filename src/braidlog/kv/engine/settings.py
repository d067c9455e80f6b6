"""The settings of the key-value store, with defaults and bounds."""

from enum import StrEnum

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import Flush


class Eviction(StrEnum):
    """The reaction to a mutation that needs more memory than available.

    refuse: the mutation is refused with OUT_OF_MEMORY.
    lru: the least recently used keys are evicted until it fits.
    """

    REFUSE = "refuse"
    LRU = "lru"


class KeyValueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one store."""

    memory_bytes_max: int = 1024 * 1024 * 1024
    """Memory for keys and values; 0 means no limit."""
    eviction: Eviction = Eviction.REFUSE
    """Reaction at the memory limit: refuse (mutations fail), or lru (evict the least recently used keys)."""
    flush: Flush = Flush.ACK
    """Durability of an acknowledged mutation: ack (synced to disk), interval, os."""
    flush_interval_ms: int = 1_000
    """With `flush` = interval: maximum time between two syncs."""
    flush_window_bytes: int = 64 * 1024 * 1024
    """Start a sync after this many un-synced bytes, regardless of `flush`."""
    snapshot_wal_bytes: int = 64 * 1024 * 1024
    """A snapshot is taken once the log has grown by this much since the last snapshot, and by that snapshot's size."""
    feed: bool = True
    """Publish every mutation in the topic `__kv`, too."""
    feed_linger_ms: int = 50
    """How long a mutation may wait for further ones before it is published: each batch of the feed costs a sync."""

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
