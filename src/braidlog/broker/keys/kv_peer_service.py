"""Handles messages between nodes about keys: clock stamps, salvaged changes, comparisons of replicas.

Does not handle: transport, the sender's identity.
Invariant: a clock more than a minute ahead of this node's is refused, together with its message. Therefore this
node sends no stamp that a peer with the same clock would refuse, even if an earlier clock error has left such
stamps in its slots.
"""

from collections.abc import Callable

from braidlog.broker.keys.replica_comparison import ReplicaComparison
from braidlog.broker.keys.slot_service import SlotService
from braidlog.kv.engine.hybrid_clock import DRIFT_MS_MAX, HybridClock, unpack_stamp
from braidlog.kv.engine.operations import Level
from braidlog.kv.replicated import anti_entropy as anti_entropy  # noqa: PLC0414 - part of this service's interface
from braidlog.kv.replicated.log_records import Origin, SlotRecord
from braidlog.kv.replicated.slots import LOG_TOPIC
from braidlog.kv.wal.wal_entries import OPS
from braidlog.model.errors import BrokerError, NotLeaderError, Reason
from braidlog.model.runtime.runtime import Runtime

_AHEAD_MS_MAX = DRIFT_MS_MAX // 2
"""How far ahead a stamp may be that this node sends. The rest of the limit allows for a slower clock of the
receiver."""


class KeyPeerService:
    """Serves the other nodes. `sender`: this node's id in messages and stamps. `slots` returns None if there are
    none."""

    def __init__(self, sender: bytes, runtime: Runtime, slots: Callable[[], SlotService | None] = lambda: None) -> None:
        self.sender = sender
        self._runtime = runtime
        self._slots = slots
        self._clock = HybridClock(sender)
        self.comparing = ReplicaComparison(slots, runtime)

    def stamp(self) -> bytes:
        """Return the stamp of a message sent now. It is later than everything that this node has received or written
        to slots, if that is near the present. Stamps from a clock that once was an hour ahead are ignored: peers
        would refuse them."""
        now_ms = self._runtime.now_ms()
        if self._clock.wall_ms > now_ms + _AHEAD_MS_MAX:
            self._clock = HybridClock(self.sender)
        slots = self._slots()
        if slots is not None and slots.clock.wall_ms <= now_ms + _AHEAD_MS_MAX:
            self._clock.advance_past(slots.clock.stamp)
        self._clock.tick(now_ms)
        return self._clock.stamp.pack()

    def observe(self, stamp: bytes) -> None:
        """Advance the clock past a peer's stamp. Raise `BrokerError` if the peer's clock is too far ahead."""
        heard = unpack_stamp(stamp)
        self._clock.observe(heard, self._runtime.now_ms())
        slots = self._slots()
        if slots is not None:
            slots.clock.advance_past(heard)  # not with this node's wall clock, which may jump: slots use a steady one

    async def replicate(self, number: int, record: SlotRecord) -> bool:
        """Apply a change that another node truncated from its log; return whether it is final here: committed, or
        superseded."""
        slots = self._slots()
        if slots is None:
            raise NotLeaderError(LOG_TOPIC, number, "keys of this node are in no logs")
        if slots.log_of(record.key) != number:
            raise BrokerError(Reason.INVALID_RECORD, f"key {record.key!r} is not in log {number}")
        return (await slots.replicate(number, record)).is_final


def salvaged(
    operation: int, key: bytes, argument: bytes, ttl_seconds: int, stamp: bytes, origin: tuple[int, int]
) -> SlotRecord:
    """Return the record of a change that another node has truncated from its log."""
    if operation not in OPS:
        raise BrokerError(Reason.INVALID_RECORD, f"operation {operation:#04x} on {key!r} is not a change")
    return SlotRecord(OPS[operation], key, argument, ttl_seconds, Level.ONE, unpack_stamp(stamp), Origin(*origin))
