"""What all connections of a node hold in memory together: frames that are not whole yet, long polls, answers not taken yet;
beside what the node keeps for its clients (groups, transactions), which takes room and cannot be let go.

Knows: who holds how much, who waits for room. Refuses to know: why. Invariant: together they hold no more than `bytes_max` and
what one read or one answer adds: once it is reached, whoever holds most is let go, and nobody begins anything until there is
room. A client that sends whole requests and takes its answers holds next to nothing, and is never the one that goes.
"""

import logging
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("braidlog.budget")

SMALL_BYTES = 16 * 1024
"""What a connection may hold without anyone counting: so the usual request costs one comparison."""
_COUNT_SECONDS = 0.01
_ROOM = 7 / 8


class Holder(Protocol):
    """Whoever holds memory and can be made to give it back."""

    @property
    def peer(self) -> str: ...

    def held_bytes(self) -> int: ...

    def abort(self) -> None: ...

    def room_again(self) -> None: ...


class Budget:
    """One for all listeners of a node."""

    def __init__(self, bytes_max: int, now: Callable[[], float] = time.monotonic) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.bytes_kept = 0
        """What the node keeps for its clients; whoever keeps it bounds it."""
        self.let_go = 0
        self._now = now
        self._counted_at = now()
        self._held: dict[Holder, int] = {}
        self._leaving: dict[Holder, int] = {}
        self._waiting: dict[Holder, None] = {}

    @property
    def is_full(self) -> bool:
        return self.bytes_held >= self.bytes_max - self.bytes_kept  # asked for every request: no call for the room

    @property
    def is_short(self) -> bool:
        """Whether who can spare something should give it back, before somebody has to be let go."""
        return self.bytes_held + self.bytes_kept >= self.bytes_max * _ROOM

    @property
    def _bytes_for_connections(self) -> int:
        return self.bytes_max - self.bytes_kept

    def note(self, holder: Holder, held: int) -> None:
        """`holder` holds so much now."""
        before = self._held.get(holder, 0)
        if (held <= SMALL_BYTES and not before) or holder in self._leaving:
            return
        if held <= SMALL_BYTES:
            del self._held[holder]
            held = 0
        else:
            self._held[holder] = held
        self.bytes_held += held - before
        if self.is_full and held > before:
            self.settle()  # somebody goes only for what is held now, not for what was when it was said last
        elif held < before:
            self._release()

    def wait(self, holder: Holder) -> None:
        """Tell `holder` when there is room again."""
        self._waiting[holder] = None
        if self._now() - self._counted_at > _COUNT_SECONDS:
            self.settle()

    def forget(self, holder: Holder) -> None:
        """It is gone, and with it what it held."""
        self.bytes_held -= self._held.pop(holder, 0) + self._leaving.pop(holder, 0)
        self._waiting.pop(holder, None)
        self._release()

    def reserve(self, kept: int) -> None:
        """So much is kept beside what connections hold."""
        self.bytes_kept = kept
        self.settle()

    def settle(self) -> None:
        """Count anew: answers leave without anyone saying so. Done now and then, and whenever there seems to be no room."""
        self._counted_at = self._now()
        self._held = {holder: held for holder in self._held if (held := holder.held_bytes()) > SMALL_BYTES}
        self.bytes_held = sum(self._held.values()) + sum(self._leaving.values())
        if self.is_full:
            self._make_room()
        self._release()

    def _make_room(self) -> None:
        """Let the largest go. What they held counts until they are gone: a loop that is busy frees nothing."""
        staying = sum(self._held.values())
        if staying < self._bytes_for_connections:
            return
        for holder in sorted(self._held, key=self._held.__getitem__, reverse=True):
            held = self._leaving[holder] = self._held.pop(holder)
            log.warning("%s is cut off: it holds %d bytes, and together they are too many", holder.peer, held)
            self.let_go += 1
            holder.abort()
            staying -= held
            if staying <= self._bytes_for_connections * _ROOM:
                return

    def _release(self) -> None:
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for holder in waiting:
                holder.room_again()
