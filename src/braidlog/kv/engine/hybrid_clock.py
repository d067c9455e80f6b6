"""The hybrid logical clock: stamps mutations so that any two of them, from any nodes, have an order.

The current time is an argument. Invariant: each stamp is greater than all given or observed before. It is ahead of
the wall clock at most as far as the wall clock itself once was, or by `DRIFT_MS_MAX` because of a peer.

     0  wall     u64  ms since 1970
     8  counter  u32  mutations in the same millisecond, or since the wall clock was set back
    12  node     16   the node's id, so that no two nodes give the same stamp

One node's stamps depend on the times alone: a time greater than the last one resets the counter to 0, any other
increments it. So replaying a log of times gives the same stamps.
"""

import struct
from typing import NamedTuple

from braidlog.model.errors import BrokerError, Reason

COUNTER_MAX = 2**32 - 1
DRIFT_MS_MAX = 60_000
NODE_BYTES = 16
_STAMP = struct.Struct(">QI16s")


class Stamp(NamedTuple):
    """Compared as a tuple: wall time, then counter, then node."""

    wall_ms: int
    counter: int
    node: bytes

    def pack(self) -> bytes:
        return _STAMP.pack(*self)


def unpack_stamp(data: bytes) -> Stamp:
    return Stamp(*_STAMP.unpack(data))


class HybridClock:
    """The clock of one node."""

    __slots__ = ("counter", "node", "wall_ms")

    def __init__(self, node: bytes, wall_ms: int = 0, counter: int = 0) -> None:
        if len(node) != NODE_BYTES:
            raise ValueError(f"a node id has {NODE_BYTES} bytes, not {len(node)}")
        self.node = node
        self.wall_ms = wall_ms
        self.counter = counter

    def tick(self, now_ms: int) -> int:
        """Advance the clock for a local mutation; return the wall part of the new stamp."""
        if now_ms > self.wall_ms:
            self.wall_ms = now_ms
            self.counter = 0
        elif self.counter < COUNTER_MAX:
            self.counter += 1
        else:
            self.wall_ms += 1
            self.counter = 0
        return self.wall_ms

    def tick_many(self, now_ms: int, count: int) -> None:
        """Advance by `count` ticks at `now_ms`, which is not before the last stamp. Check `can_tick` first."""
        self.counter = count - 1 if now_ms > self.wall_ms else self.counter + count
        self.wall_ms = now_ms

    def can_tick(self, now_ms: int, count: int) -> bool:
        """Return whether `count` ticks at `now_ms` all get that time."""
        return now_ms > self.wall_ms or (now_ms == self.wall_ms and self.counter + count <= COUNTER_MAX)

    @property
    def stamp(self) -> Stamp:
        """The last stamp given."""
        return Stamp(self.wall_ms, self.counter, self.node)

    def advance_past(self, other: Stamp) -> None:
        """Advance past a stamp from this node's own log, however far ahead it is."""
        self.wall_ms, self.counter = max((self.wall_ms, self.counter), (other.wall_ms, other.counter))

    def observe(self, other: Stamp, now_ms: int) -> Stamp:
        """Return a stamp that is greater than another node's stamp and than all of this node's.

        Raises if the peer's clock is too far ahead: it would advance the clocks of the whole cluster.
        """
        if other.wall_ms > now_ms + DRIFT_MS_MAX:
            raise BrokerError(
                Reason.UNAVAILABLE, f"a peer's clock is {other.wall_ms - now_ms} ms ahead, more than {DRIFT_MS_MAX}"
            )
        self.advance_past(other)
        self.tick(now_ms)
        return self.stamp
