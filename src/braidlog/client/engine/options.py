"""Options of a producer and of a consumer: the keywords of `client.producer()` and `client.consumer()`."""

from typing import Literal, TypedDict

import msgspec

from braidlog.client.drivers.contract import Acks, Capabilities
from braidlog.client.engine.delivery import Retries


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`idempotent` None: if the dialect supports it. `acks` None: all for an idempotent producer, otherwise leader. A
    record that only the leader acknowledged may be lost in a failover; the next leader then refuses the sequence
    numbers that follow it."""

    acks: Acks | None = None
    linger_ms: float = 0
    """How long a batch waits for more records. Even with 0, records sent during a batch's flight share the next
    batch."""
    batch_bytes_max: int = 1024 * 1024
    batch_records_max: int = 10_000
    buffer_bytes_max: int = 32 * 1024 * 1024
    delivery_timeout: float = 120.0
    """Seconds from `send` until a record is given up. An attempt in flight at that time is awaited."""
    send_timeout: float = 60.0
    """Seconds that `send` waits for room in the buffer."""
    idempotent: bool | None = None
    retries: Retries = Retries.SAFE
    transactional_id: str | None = None
    """With it the producer writes in transactions only: `async with producer.transaction()`. A new producer under the
    same id fences the old one and aborts its open transaction: each concurrent producer needs its own id, which must
    stay the same."""
    transaction_timeout: float = 60.0
    """Seconds after which the server aborts an open transaction."""
    trace_context: bool = False
    """Put the current OpenTelemetry context into the headers of each record (`braidlog.client.tracing`)."""

    def is_idempotent(self, able: Capabilities) -> bool:
        return able.idempotence and self.idempotent is not False

    def acks_of(self, able: Capabilities) -> Acks:
        """Return the acks to request from a server with these capabilities."""
        if self.acks is not None:
            return self.acks
        return Acks.ALL if self.is_idempotent(able) and Acks.ALL in able.acks else Acks.LEADER


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    fetch_bytes_max: int = 1024 * 1024
    prefetch_bytes_max: int = 8 * 1024 * 1024
    """For all partitions together; each gets an equal share."""
    wait_ms: int = 500
    """How long the server may hold a fetch when there are no records."""
    reset: Literal["earliest", "latest"] | None = None
    """Where to continue when an offset no longer exists (offset reset). None: `poll` raises."""
    auto_commit_ms: int | None = None
    """None: offsets are committed only by `commit()`."""
    heartbeat_seconds: float = 3.0
    patterns_seconds: float = 30.0
    """How often a member that subscribed to patterns looks for matching topics."""


class ProducerKeywords(TypedDict, total=False):
    """`ProducerOptions` as keywords, for editors and type checkers."""

    acks: Acks | Literal["leader", "all"] | None
    linger_ms: float
    batch_bytes_max: int
    batch_records_max: int
    buffer_bytes_max: int
    delivery_timeout: float
    send_timeout: float
    idempotent: bool | None
    retries: Retries | Literal["safe", "at-least-once"]
    transactional_id: str | None
    transaction_timeout: float
    trace_context: bool


class ConsumerKeywords(TypedDict, total=False):
    """`ConsumerOptions` as keywords."""

    fetch_bytes_max: int
    prefetch_bytes_max: int
    wait_ms: int
    reset: Literal["earliest", "latest"] | None
    auto_commit_ms: int | None
    heartbeat_seconds: float
    patterns_seconds: float
