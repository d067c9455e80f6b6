"""What nodes tell each other about keys, at this node: whose clock is right, what was cut from another's log, and
whether replicas are alike.

Knows: the slots that are here, this node's hybrid clock. Refuses to know: how messages travel, who asks.
Invariant: a clock that is more than a minute ahead of ours is not followed, and what came with it is refused; so no message of
ours says what another node, with a clock as ours is, would refuse: not what a clock that was wrong has left in our slots.
"""

from collections.abc import Callable

from braidlog.broker.keys.replica_comparison import ReplicaComparison
from braidlog.broker.keys.slot_service import SlotService
from braidlog.kv.engine.hybrid_clock import DRIFT_MS_MAX, HybridClock, unpack_stamp
from braidlog.kv.engine.operations import Level
from braidlog.kv.replicated import anti_entropy as anti_entropy  # noqa: PLC0414 - the words in which replicas are compared
from braidlog.kv.replicated.log_records import Origin, SlotRecord
from braidlog.kv.replicated.slots import LOG_TOPIC
from braidlog.kv.wal.wal_entries import OPS
from braidlog.model.errors import BrokerError, NotLeaderError, Reason
from braidlog.model.runtime.runtime import Runtime

_AHEAD_MS_MAX = DRIFT_MS_MAX // 2
"""What we say of clocks ahead of ours: the rest is for how far the listener's clock is behind."""


class KeyPeerService:
    """Of one node with the others. `sender`: its id, in each of its messages and stamps. `slots` gives None if there are none."""

    def __init__(self, sender: bytes, runtime: Runtime, slots: Callable[[], SlotService | None] = lambda: None) -> None:
        self.sender = sender
        self._runtime = runtime
        self._slots = slots
        self._clock = HybridClock(sender)
        self.comparing = ReplicaComparison(slots, runtime)

    def stamp(self) -> bytes:
        """Of what this node sends now: later than everything it has heard, and has written to slots, as long as that is near the
        present. A clock that was an hour ahead, and was set right, leaves stamps in slots that nobody is to be refused for."""
        now_ms = self._runtime.now_ms()
        if self._clock.wall_ms > now_ms + _AHEAD_MS_MAX:
            self._clock = HybridClock(self.sender)
        slots = self._slots()
        if slots is not None and slots.clock.wall_ms <= now_ms + _AHEAD_MS_MAX:
            self._clock.advance_past(slots.clock.stamp)
        self._clock.tick(now_ms)
        return self._clock.stamp.pack()

    def observe(self, stamp: bytes) -> None:
        """What is written here from now on is later. `BrokerError`: its clock is too far ahead of ours."""
        heard = unpack_stamp(stamp)
        self._clock.observe(heard, self._runtime.now_ms())
        slots = self._slots()
        if slots is not None:
            slots.clock.advance_past(heard)  # and not our own wall clock, which jumps: slots have a steady one

    async def replicate(self, number: int, record: SlotRecord) -> bool:
        """Take what another node has cut from a log; return whether it is settled here: committed, or superseded."""
        slots = self._slots()
        if slots is None:
            raise NotLeaderError(LOG_TOPIC, number, "keys of this node are in no logs")
        if slots.log_of(record.key) != number:
            raise BrokerError(Reason.INVALID_RECORD, f"key {record.key!r} is not in log {number}")
        return (await slots.replicate(number, record)).is_final


def salvaged(
    operation: int, key: bytes, argument: bytes, ttl_seconds: int, stamp: bytes, origin: tuple[int, int]
) -> SlotRecord:
    """What another node says that it has cut from a log."""
    if operation not in OPS:
        raise BrokerError(Reason.INVALID_RECORD, f"operation {operation:#04x} on {key!r} is not a change")
    return SlotRecord(OPS[operation], key, argument, ttl_seconds, Level.ONE, unpack_stamp(stamp), Origin(*origin))
