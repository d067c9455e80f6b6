"""The hybrid logical clock: stamps mutations so that any two of them are ordered, on any nodes.

Does not handle: reading the time (an argument).
Invariant: each stamp is greater than every one issued or observed before. It is never further ahead of the wall
clock than that clock once was, or than `DRIFT_MS_MAX` beyond it if a peer's clock is ahead.

     0  wall     u64  ms since 1970
     8  counter  u32  mutations in the same millisecond, or since the wall clock was set back
    12  node     16   the node's id, so that no two nodes issue the same stamp

Stamps of one node follow from the times alone: a time greater than the last one resets the counter to 0, any
other increments it. So a log of times restores exactly the same stamps.
"""

import struct
from typing import NamedTuple

from braidlog.model.errors import BrokerError, Reason

COUNTER_MAX = 2**32 - 1
DRIFT_MS_MAX = 60_000
NODE_BYTES = 16
_STAMP = struct.Struct(">QI16s")


class Stamp(NamedTuple):
    """A stamp, compared as a tuple: wall time, then counter, then node."""

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
        """Advance the clock for a local event; return the wall part of the new stamp."""
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
        """Advance the clock by `count` ticks at `now_ms`, which is not before the last stamp. Requires `can_tick`."""
        self.counter = count - 1 if now_ms > self.wall_ms else self.counter + count
        self.wall_ms = now_ms

    def can_tick(self, now_ms: int, count: int) -> bool:
        """Return whether `count` ticks at `now_ms` all get that wall time."""
        return now_ms > self.wall_ms or (now_ms == self.wall_ms and self.counter + count <= COUNTER_MAX)

    @property
    def stamp(self) -> Stamp:
        """The last issued stamp."""
        return Stamp(self.wall_ms, self.counter, self.node)

    def advance_past(self, other: Stamp) -> None:
        """Advance past a stamp of this node's log, however far ahead it is."""
        self.wall_ms, self.counter = max((self.wall_ms, self.counter), (other.wall_ms, other.counter))

    def observe(self, other: Stamp, now_ms: int) -> Stamp:
        """Advance past another node's stamp; return a stamp that is greater than it and than all stamps of this
        node.

        Raises if the peer's clock is far ahead: it would move every clock of the cluster with it.
        """
        if other.wall_ms > now_ms + DRIFT_MS_MAX:
            raise BrokerError(
                Reason.UNAVAILABLE, f"a peer's clock is {other.wall_ms - now_ms} ms ahead, more than {DRIFT_MS_MAX}"
            )
        self.advance_past(other)
        self.tick(now_ms)
        return self.stamp
