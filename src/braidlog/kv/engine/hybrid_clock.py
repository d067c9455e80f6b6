"""The hybrid logical clock: when a mutation happened, so that any two of them have an order, on whatever nodes.

Knows: how wall time and a counter make one clock that never runs backwards. Refuses to know: what time it is (an argument).
Invariant: each stamp is greater than every one given or observed before, and never further ahead of the wall clock than the
clock itself once was, or than `DRIFT_MS_MAX` beyond it where a peer is the one that runs ahead.

     0  wall     u64  ms since 1970
     8  counter  u32  mutations in the same millisecond, or since the wall clock was set back
    12  node     16   the node's id, so that no two nodes give the same stamp

Stamps of one node follow from the times alone: a time greater than the last one starts the counter at 0, any other adds one to
it. So a log of times gives back the very same stamps.
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
        """Something happened here: move on, and return the wall part of the new stamp."""
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
        """As so many ticks at `now_ms`, which is not before the last stamp; `can_tick` was asked."""
        self.counter = count - 1 if now_ms > self.wall_ms else self.counter + count
        self.wall_ms = now_ms

    def can_tick(self, now_ms: int, count: int) -> bool:
        """Whether so many ticks at `now_ms` all have that time."""
        return now_ms > self.wall_ms or (now_ms == self.wall_ms and self.counter + count <= COUNTER_MAX)

    @property
    def stamp(self) -> Stamp:
        """The last stamp given."""
        return Stamp(self.wall_ms, self.counter, self.node)

    def advance_past(self, other: Stamp) -> None:
        """A stamp is in our own log: the next one is greater, however far ahead it is."""
        self.wall_ms, self.counter = max((self.wall_ms, self.counter), (other.wall_ms, other.counter))

    def observe(self, other: Stamp, now_ms: int) -> Stamp:
        """A stamp of another node was seen: give one that is greater than it and than all of ours.

        A peer whose clock is far ahead would drag every clock of the cluster with it: it is refused.
        """
        if other.wall_ms > now_ms + DRIFT_MS_MAX:
            raise BrokerError(
                Reason.UNAVAILABLE, f"a peer's clock is {other.wall_ms - now_ms} ms ahead, more than {DRIFT_MS_MAX}"
            )
        self.advance_past(other)
        self.tick(now_ms)
        return self.stamp
